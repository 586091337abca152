"""Real steps of two ranks under schedules with several stages a rank, beside replays of layers timed by themselves.

``benchmarks.plans.looped_runs`` measured them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plans.looped_runs import CASES, EXAMPLES, FILE, LAYERS, RANKS, WIDTH
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import lower
from cdmpp.plans.plan import Plan
from cdmpp.plans.sources.table import TableSource
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.platform.files import read_json
from cdmpp.steps.from_layers import Layer
from cdmpp.steps.replay import replay


def figures(told: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, int, float, float]]:
    """Schedule, stages of a rank, micro-batches, measured and predicted seconds of each case."""
    found = []
    for number, case in enumerate(CASES):
        step_s = float(np.mean([statistics.median(one["steps_s"][number]) for one in told]))
        found.append((*case, step_s, predicted_s(told, *case)))
    return found


def tables(data: Path) -> list[dict[str, Any]]:  # noqa: ARG001 (its figures are kept here)
    """Judge predictions of the kept runs."""
    stored = read_json(FILE)
    found = figures(stored["ranks"])
    off = np.array([predicted_s / step_s - 1 for *_, step_s, predicted_s in found])
    rows = [
        [f"`{name}`", str(count), str(many), f"{1e3 * step_s:.0f}", f"{1e3 * predicted_s:.0f}", f"{100 * one:+.1f}"]
        for (name, count, many, step_s, predicted_s), one in zip(found, off, strict=True)
    ]
    note = (
        f"{LAYERS} blocks of two linear layers ({WIDTH}, {2 * WIDTH}), {EXAMPLES} examples a micro-batch, on {RANKS} "
        f"ranks of gloo on one machine, a core each, torch {stored['torch']}; median step. Predicted: the replay of "
        "blocks, messages and updates that were timed by themselves; no step is in any fit. In the mean "
        f"{100 * np.abs(off).mean():.1f} % off, {100 * np.median(np.abs(off)):.1f} in the median. Predictions are too "
        "fast, most where backward passes are divided or stages are many; what carries the difference was not isolated."
    )
    columns = ["schedule", "stages a rank", "micro-batches", "measured, ms", "predicted, ms", "off, %"]
    commands = ["python -m benchmarks.plans.looped_runs", "python -m benchmarks.plans looped --data . --publish"]
    return [
        {"title": "Real steps of schedules here", "note": note, "commands": commands, "columns": columns, "rows": rows}
    ]


def predicted_s(told: Sequence[Mapping[str, Any]], name: str, count: int, many: int) -> float:
    """Seconds of a step of a case by replay of what was timed by itself; nothing is fitted to a step."""
    size, parameters = 4 * EXAMPLES * WIDTH, 4 * (4 * WIDTH * WIDTH + 3 * WIDTH)
    passes = {
        place: {what: statistics.mean(one[place][what] for one in told) for what in told[0][place]}
        for place in ("first", "other")
    }
    passes["first"]["weights_s"] = passes["first"]["backward_s"]
    once_s = statistics.mean(one["once_s"] for one in told)
    layers = [
        Layer(f"layer.{i}", **passes["other" if i else "first"], parameter_bytes=parameters, output_bytes=size,
              update_s=RANKS * once_s / LAYERS)
        for i in range(LAYERS)
    ]  # fmt: skip
    (small, large) = (statistics.mean(one["messages_s"][i][1] for one in told) for i in (0, 1))
    sizes = [one[0] for one in told[0]["messages_s"]]
    beta_s = (large - small) / (sizes[1] - sizes[0])
    topology = fitted(AlphaBeta(small - beta_s * sizes[0], beta_s), RANKS, "gloo")
    each = LAYERS // (RANKS * count)
    cuts = tuple(f"layer.{each * stage}" for stage in range(1, RANKS * count))
    pipeline = Pipeline(name, many, cuts, stages_per_rank=count, return_outputs=False)
    plan = Plan(degrees=ParallelDegrees(pp=RANKS), model_parallel=(pipeline,))
    return replay(lower(TableSource(layers), plan, topology, many).graph, topology).step_s
