"""What we want to reach, beside what was measured: a table of ``docs/results/index.md``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.publish.markdown import table
from cdmpp.evaluation.results import Result

_CPUS = ("xeon-icelake", "xeon-icelake-avx2", "xeon-icelake-2c", "xeon-emeraldrapids", "epyc-genoa")
_A100_NETWORKS = ("by_network_googlenet_to_resnet34", "by_network_resnet34_to_googlenet")
_CODE = "a100-code"
"""Name of the evaluation of models that read the code of CUDA programs; ``a100``: of those that read ASTs alone."""


@dataclass(frozen=True)
class Goal:
    """A figure that should be reached."""

    setting: str
    metric: str
    """Name as in ``training.metrics.latency_metrics``."""
    at_most: float
    """Percent, or a ratio for regrets. Bias: of its absolute value."""
    dataset: str
    split: str
    model: str = "cdmpp"
    over: str = ""
    """A baseline: the figure is the ratio of the model's metric to this one's."""
    over_dataset: str = ""
    """Where the baseline's rows are; empty: beside the model's."""

    def measured(self, results: Sequence[Result]) -> tuple[float, int] | None:
        """(mean over seeds, number of seeds); None where nobody measured it."""
        by_seed = self._by_seed(results, self.dataset, self.model)
        if self.over:
            baseline = self._by_seed(results, self.over_dataset or self.dataset, self.over)
            by_seed = {seed: by_seed[seed] / baseline[seed] for seed in by_seed.keys() & baseline.keys()}
        return (float(np.mean(list(by_seed.values()))), len(by_seed)) if by_seed else None

    def _by_seed(self, results: Sequence[Result], dataset: str, model: str) -> dict[int, float]:
        wanted = (dataset, self.split, model, self.metric)
        return {r.seed: r.value for r in results if (r.dataset, r.split, r.model, r.metric) == wanted}


def goals() -> list[Goal]:
    """All of them, in the order of the table."""
    rows = [
        Goal("A100, programs of known tasks", "mape", 8, "a100", "random"),
        Goal("A100, unknown tasks", "mape", 15, "a100", "by_task"),
    ]
    for split in _A100_NETWORKS:
        rows += [
            Goal("A100, an unknown network", "mape", 17, "a100", split),
            Goal("A100, an unknown network: bias at the best schedule", "bias_at_best", 5, "a100", split),
            Goal("A100, an unknown network: weighted top-1 regret", "weighted_top1_regret", 1.08, "a100", split),
            Goal("A100, an unknown network, 4 programs of each task measured", "mape", 13, "a100", f"{split}_4_labels"),
        ]
    read = "A100, machine code read"
    rows.append(Goal(f"{read}, unknown tasks", "mape", 9, _CODE, "by_task"))
    for network, error in (("resnet34", 9), ("googlenet", 12)):
        split, unknown = f"by_network+test_networks:{network}", f"{read}, an unknown network"
        rows += [
            Goal(unknown, "mape", error, _CODE, split),
            Goal(f"{unknown}: bias at the best schedule", "bias_at_best", 3, _CODE, split),
            Goal(f"{unknown}: weighted top-1 regret", "weighted_top1_regret", 1.03, _CODE, split),
        ]
    for device in _CPUS:
        rows += [
            Goal("CPU, six unknown networks", "mape", 20, device, "held_out"),
            Goal("CPU, six unknown networks", "median_ape", 10, device, "held_out"),
            Goal("CPU, six unknown networks: top-1 regret", "top1_regret", 1.08, device, "held_out"),
        ]
    for device in _CPUS[:4]:
        rows += [
            Goal(
                "CPU, MAPE over that of trees on TVM's features",
                "mape",
                0.4,
                device,
                "held_out",
                over="xgb_per_store",
                over_dataset=f"{device}-per-store",
            )
        ]
    rows += [
        Goal("CPU, one model of all devices, six unknown networks", "mape", 20, "cpus", "held_out", "ensemble"),
        Goal("CPU, one model of all devices, six unknown networks", "median_ape", 10, "cpus", "held_out", "ensemble"),
        Goal("CPU, one model of all devices: top-1 regret", "top1_regret", 1.08, "cpus", "held_out", "ensemble"),
    ]
    rows += [
        Goal("CPU, a set-up never measured", "mape", 25, f"to-{short}", f"by_device_to_{short}")
        for short in ("avx2", "2c")
    ]
    for device in ("xeon-emeraldrapids", "epyc-genoa-avx2"):
        data, split = f"to-{device.split('-', 1)[1]}", f"by_device+target:{device}"
        rows += [
            Goal("CPU, a core never measured", "mape", 22, data, split),
            Goal("CPU, a core never measured", "median_ape", 15, data, split),
        ]
    for tasks, most in ((30, 15), (200, 13)):
        few = "few-labels-epyc-genoa-avx2"
        rows.append(
            Goal(f"CPU, a new core, {tasks} of its tasks measured", "mape", most, few, f"{tasks}_tasks", "kmeans_most")
        )
    for device in ("xeon-icelake-avx2", "xeon-icelake-2c", "xeon-emeraldrapids"):
        few = f"few-labels-{device}"
        for sampler in ("kmeans", "kmeans_most"):
            rows += [
                Goal(f"CPU, a new device, 30 of its tasks measured ({sampler})", "mape", 12, few, "30_tasks", sampler),
                Goal(f"CPU, {sampler} against random sampling", "mape", 0.9, few, "30_tasks", sampler, over="random"),
            ]
    return rows


def goal_table(results: Sequence[Result]) -> list[str]:
    """Lines of the Markdown table."""
    rows = []
    for goal in goals():
        measured = goal.measured(results)
        figures: tuple[object, ...] = ("not measured yet", "-", "-")
        if measured is not None:
            mean, seeds = measured
            figures = ("reached" if abs(mean) <= goal.at_most else "missed", f"{mean:.3g}", seeds)
        metric = goal.metric + (f", over {goal.over}" if goal.over else "")
        rows.append(
            (goal.setting, f"{goal.dataset}, `{goal.split}`", metric, figures[0], f"{goal.at_most:g}", *figures[1:])
        )
    return table(["setting", "data, split", "metric", "", "target", "measured", "seeds"], rows, left=4)
