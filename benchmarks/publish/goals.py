"""What we want to reach, beside what was measured: the first table of ``docs/RESULTS.md``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_CPUS = ("xeon-icelake", "xeon-icelake-avx2", "xeon-icelake-2c", "xeon-emeraldrapids")
_A100_NETWORKS = ("by_network_googlenet_to_resnet34", "by_network_resnet34_to_googlenet")


@dataclass(frozen=True)
class Goal:
    setting: str
    metric: str
    """Name as in ``training.metrics.METRICS``."""
    at_most: float
    """Percent, or a ratio for regrets. Bias: of its absolute value."""
    dataset: str
    split: str
    model: str = "cdmpp"
    over: str = ""
    """A baseline: the figure is the ratio of the model's metric to this one's."""
    over_dataset: str = ""
    """Where the baseline's rows are; empty: beside the model's."""

    def measured(self, rows: Sequence[Mapping[str, Any]]) -> tuple[float, int] | None:
        """(mean over seeds, number of seeds) from rows of ``results.json``; None where nobody measured it."""
        mine = self._by_seed(rows, self.dataset, self.model)
        theirs = self._by_seed(rows, self.over_dataset or self.dataset, self.over)
        if self.over:
            mine = {seed: mine[seed] / theirs[seed] for seed in mine.keys() & theirs.keys()}
        return (float(np.mean(list(mine.values()))), len(mine)) if mine else None

    def _by_seed(self, rows: Sequence[Mapping[str, Any]], dataset: str, model: str) -> dict[int, float]:
        wanted = (dataset, self.split, model, self.metric)
        return {
            row["seed"]: row["value"]
            for row in rows
            if (row["dataset"], row["split"], row["model"], row["metric"]) == wanted
        }


def goals() -> list[Goal]:
    """All of them, in the order of the table."""
    found = [
        Goal("A100, programs of known tasks", "mape", 8, "a100", "random"),
        Goal("A100, unknown tasks", "mape", 15, "a100", "by_task"),
    ]
    for split in _A100_NETWORKS:
        found += [
            Goal("A100, an unknown network", "mape", 17, "a100", split),
            Goal("A100, an unknown network: bias at the best schedule", "bias_at_best", 5, "a100", split),
            Goal("A100, an unknown network: weighted top-1 regret", "weighted_top1_regret", 1.08, "a100", split),
            Goal("A100, an unknown network, 4 programs of each task measured", "mape", 13, "a100", f"{split}_4_labels"),
        ]
    for device in _CPUS:
        found += [
            Goal("CPU, six unknown networks", "mape", 20, device, "held_out"),
            Goal("CPU, six unknown networks", "median_ape", 10, device, "held_out"),
            Goal(
                "CPU, MAPE over that of trees on TVM's features",
                "mape",
                0.4,
                device,
                "held_out",
                over="xgb_per_store",
                over_dataset=f"{device}-per-store",
            ),
            Goal("CPU, six unknown networks: top-1 regret", "top1_regret", 1.08, device, "held_out"),
        ]
    found += [
        Goal("CPU, one model of four devices, six unknown networks", "mape", 20, "cpus", "held_out"),
        Goal("CPU, one model of four devices, six unknown networks", "median_ape", 10, "cpus", "held_out"),
        Goal("CPU, one model of four devices: top-1 regret", "top1_regret", 1.08, "cpus", "held_out"),
    ]
    for device in ("xeon-icelake-avx2", "xeon-icelake-2c", "xeon-emeraldrapids"):
        short = device.rsplit("-", 1)[-1]
        found.append(Goal("CPU, a device never measured", "mape", 25, f"to-{short}", f"by_device_to_{short}"))
        few = f"few-labels-{device}"
        for sampler in ("kmeans", "kmeans_most"):
            found += [
                Goal(f"CPU, a new device, 30 of its tasks measured ({sampler})", "mape", 12, few, "30_tasks", sampler),
                Goal(f"CPU, {sampler} against random sampling", "mape", 0.9, few, "30_tasks", sampler, over="random"),
            ]
    return found


def goal_section(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown of the table, from rows of ``results.json``."""
    lines = ["## Targets", "", "Means over seeds; `over`: the ratio to that model's figure.", ""]
    lines += ["| setting | data, split | metric | target | measured | seeds | |", "|---|---|---|---:|---:|---:|---|"]
    for goal in goals():
        found = goal.measured(rows)
        metric = goal.metric + (f", over {goal.over}" if goal.over else "")
        where = f"{goal.dataset}, `{goal.split}`"
        if found is None:
            figures = "- | - | not measured yet"
        else:
            figures = f"{found[0]:.3g} | {found[1]} | {'reached' if abs(found[0]) <= goal.at_most else 'missed'}"
        lines.append(f"| {goal.setting} | {where} | {metric} | {goal.at_most:g} | {figures} |")
    return "\n".join([*lines, ""])
