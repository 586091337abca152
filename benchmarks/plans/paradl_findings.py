"""Limits and bottlenecks of each strategy from ParaDL's layer tables, up to 1,024 GPUs: what its paper is about."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.plans.layer_table import Layer, LayerTable, columns, judge
from benchmarks.plans.paradl_data import GPUS_PER_NODE, abci, layer_table
from cdmpp.plans.limits import MEMORY, binding, terms

NETWORKS = {
    "resnet50": ("ResNet-50", 64, 1_280_000),
    "vgg": ("VGG-16", 32, 1_280_000),
    "alexnet": ("AlexNet", 512, 1_280_000),
    "cosmoflow": ("CosmoFlow", 1, 1584),
}
"""Network -> its name, examples of each replica in one step, and examples of one epoch."""
STRATEGIES = ("data", "spatial", "filter", "channel", "pipeline", "data+spatial", "data+filter", "data+pipeline")
COUNTS = tuple(2**power for power in range(11))
MEMORY_BYTES = 16e9
"""One V100 of that machine has it."""
_MICRO_BATCHES = 8


@dataclass(frozen=True)
class Point:
    """One strategy on one number of GPUs."""

    strategy: str
    gpus: int
    epoch_s: float
    """NaN where the strategy cannot be."""
    memory_bytes: float
    binding: str
    """Most of the step goes into this, or this refuses the plan."""
    parts: Mapping[str, float]
    """Term -> share of the step."""


def points(folder: Path, model: str) -> list[Point]:
    """Judge every strategy on every number of GPUs, with one batch a replica, so that it grows with the replicas."""
    table = layer_table(folder, model)
    if not any("filter" in one.divides for one in table.layers):
        table = replace(table, layers=tuple(map(_divided, table.layers)))
    found = [_point(table, model, name, gpus) for name in STRATEGIES for gpus in COUNTS]
    return [one for one in found if one is not None]


def _divided(layer: Layer) -> Layer:
    """The tables of CosmoFlow do not tell which layers are divided along filters: all convolutions."""
    return replace(layer, divides=layer.divides | {"filter"}) if layer.kernel and layer.w_items else layer


def _point(table: LayerTable, model: str, name: str, gpus: int) -> Point | None:
    _, batch, samples = NETWORKS[model]
    split = name.removeprefix("data+").replace("data", "")
    inside = 1 if not split else GPUS_PER_NODE if "+" in name else gpus
    replicas = gpus // inside
    if replicas < 1 or (split and inside == 1) or ("+" in name and replicas == 1):
        return None
    degree = "pp" if split == "pipeline" else split
    if split and inside > table.limits().get(degree, 1):
        return Point(name, gpus, math.nan, math.nan, "smallest layer", {})
    micro = min(batch, _MICRO_BATCHES) if split == "pipeline" else 1
    table = replace(table, frees=split == "pipeline")
    costs = judge(table).closed_form(columns(degree, inside, replicas, batch * replicas, micro), abci(gpus))
    parts = {term: float(values[0]) for term, values in terms(costs).items()}
    step_s, held = float(costs.step_s[0]), float(costs.memory_bytes[0])
    limit = MEMORY if held > MEMORY_BYTES else binding(parts)
    shares = {term: seconds / step_s for term, seconds in parts.items()}
    return Point(name, gpus, math.ceil(samples / (batch * replicas)) * step_s, held, limit, shares)


def save_curves(path: Path, found: Mapping[str, Sequence[Point]]) -> None:
    """Draw an epoch of each strategy against the number of GPUs, a panel a network; dotted: it does not fit."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 2, figsize=(10, 7), sharex=True)
    colours = dict(zip(STRATEGIES, pyplot.get_cmap("tab10").colors, strict=False))
    for axes, (model, own) in zip(panels.flat, found.items(), strict=True):
        for name in STRATEGIES:
            line = [one for one in own if one.strategy == name and one.epoch_s == one.epoch_s]
            fits = [one.epoch_s if one.memory_bytes <= MEMORY_BYTES else math.nan for one in line]
            counts = [one.gpus for one in line]
            axes.plot(counts, [one.epoch_s for one in line], ":", color=colours[name], linewidth=1)
            axes.plot(counts, fits, "o-", color=colours[name], label=name, markersize=3)
        axes.set(title=NETWORKS[model][0], xscale="log", yscale="log")
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
    for axes in panels[1]:
        axes.set_xlabel("GPUs")
    for axes in panels[:, 0]:
        axes.set_ylabel("seconds an epoch")
    panels[0, 0].legend(frameon=False, fontsize=7, ncols=2)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
