"""What the authors' tool printed, beside the same plans judged by the oracle on the same layers and links."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.plans.layer_table import Layer, LayerTable, columns, judge
from benchmarks.plans.paradl_data import GPUS_PER_NODE, INSIDE, between, layer_table, rows
from cdmpp.collectives.fitted_nodes import fitted_nodes
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import Topology, fitted
from cdmpp.plans.closed_form import ClosedForm

SAMPLES, COSMOFLOW_SAMPLES = 1_280_000, 1_584
_DIGITS = 12
"""The tool printed so many."""
_SPLITS = {
    **dict.fromkeys(("filter1", "filter3", "df"), "filter"),
    **dict.fromkeys(("chan1", "chan3"), "channel"),
    **dict.fromkeys(("spatial", "ds"), "spatial"),
}
_EXTRA_S = 10e-6
"""Start-up between nodes that ranking logs have on top of the scaling logs."""
_NO_CABLES = (("ranking_log/resnet/64/filter.log2", 1),)
"""Log and run with the start-up inside a node for all links."""
_SENDS_ALL = ("ranking_log/vgg/df.log", "ranking_log/vgg/df.log2", "ranking_log/resnet/1024/df.log")
"""Logs in which ranks that hold a part of the weights send all gradients."""
_FLOWS = {"ranking_log/vgg/df.log": 8, "ranking_log/vgg/df.log2": 1, "ranking_log/resnet/1024/df.log": 8}
"""Log -> flows that share the link of a node; else as many as a node has GPUs."""


FIGURES = ("memory", "compute", "communication")


@dataclass(frozen=True)
class Printed:
    """One line of a log."""

    log: str
    model: str
    case: str
    batch: int
    """Global."""
    gpus: int
    run: int
    """Some logs hold several runs of the tool: how often this question came before."""
    figures: Mapping[str, float]
    """``memory``, ``compute`` and ``communication``: bytes, and seconds an epoch."""

    @property
    def inside(self) -> int:
        """GPUs that divide the layers."""
        if self.case in ("df", "ds"):
            return min(self.gpus, 2 if self.log.endswith("_2.log") else GPUS_PER_NODE)
        return self.gpus if self.case in _SPLITS else 1

    @property
    def replicas(self) -> int:
        """GPUs, or groups of them, with a batch of their own."""
        return self.gpus // self.inside


def printed(folder: Path) -> list[Printed]:
    """Read all lines; those of CosmoFlow at 256 x 256 x 256 have no times of layers."""
    seen, found = Counter[tuple[str, ...]](), []
    for row in rows(folder / "printed_projections.csv"):
        key = tuple(row[name] for name in ("log", "case", "global_batch", "gpus"))
        figures = {
            "memory": float(row["memory_bytes"]),
            "compute": float(row["compute_s_per_epoch"]),
            "communication": float(row["comm_s_per_epoch"]),
        }
        batch, gpus = int(float(row["global_batch"])), int(float(row["gpus"]))
        found.append(Printed(row["log"], row["model"], row["case"], batch, gpus, seen[key], figures))
        seen[key] += 1
    return [one for one in found if one.model != "cosmoflow_256"]


def agrees(found: float, told: float) -> bool:
    """Return True if the two are alike in every digit that was printed."""
    return f"{found:.{_DIGITS}g}" == f"{told:.{_DIGITS}g}"


def judged(folder: Path, one: Printed) -> dict[str, float]:
    """Ask the oracle the question of one line."""
    table = layer_table(folder, one.model)
    split = _SPLITS.get(one.case, "")
    table = replace(table, sends_all=one.log in _SENDS_ALL, squares=split in ("filter", "channel") and one.case != "df")
    if split == "spatial":
        table = replace(table, in_place=())
    if one.case == "ds":
        table = replace(table, layers=_until_last(table.layers))
    found = _closed_form(table, one, split)
    samples = SAMPLES if one.model != "cosmoflow" else COSMOFLOW_SAMPLES
    steps, epochs = math.ceil(samples / one.batch), samples / one.batch
    if one.case == "data":
        epochs = math.ceil(samples / one.gpus) * one.gpus / one.batch
    if one.case == "df":
        epochs = float(steps)
    if one.case == "ds":
        epochs = math.ceil(samples / one.replicas) / (one.batch / one.replicas)
    parts = 4 * one.inside**2
    """Items of so many bytes keep the fractions of a byte that the tool printed."""
    held = _closed_form(replace(table, item_bytes=parts), one, split).memory_bytes[0] * 4 / parts
    exchanged = sum(float(np.nan_to_num(each[0])) for each in found.communication_s.values())
    return {
        "memory": float(held),
        "compute": float(found.compute_s[0]) * epochs,
        "communication": exchanged * steps,
    }


def _until_last(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Leave of the layers after the last divided one no more than their weights, as the tool does."""
    last = max(place for place, one in enumerate(layers) if "space" in one.divides)
    rest = (replace(one, x_items=0, y_items=0, seconds=0.0) for one in layers[last + 1 :])
    return (*layers[: last + 1], *rest)


def _closed_form(table: LayerTable, one: Printed, split: str) -> ClosedForm:
    return judge(table).closed_form(columns(split, one.inside, one.replicas, one.batch), _links(one))


def _links(one: Printed) -> Topology:
    """The tool's links under the settings of that log."""
    far = between(one.gpus) if one.gpus > GPUS_PER_NODE else INSIDE
    if (one.log, one.run) in _NO_CABLES:
        far = AlphaBeta(INSIDE.alpha_s, far.beta_s)
    elif one.log.startswith("ranking_log") and one.gpus > GPUS_PER_NODE:
        far = AlphaBeta(far.alpha_s + _EXTRA_S, far.beta_s)
    if one.case not in ("df", "ds"):
        return fitted(far, one.gpus, "nccl")
    flows = _FLOWS.get(one.log, one.inside)
    return fitted_nodes(INSIDE, AlphaBeta(far.alpha_s, far.beta_s * flows / one.inside), one.gpus, one.replicas)


def projections(folder: Path) -> Iterator[tuple[Printed, dict[str, float]]]:
    """Judge every line."""
    for one in printed(folder):
        yield one, judged(folder, one)


def counts(folder: Path) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]], list[tuple[Printed, str, float]]]:
    """Count figures and those that agree, by kind of log and figure; list those that do not, with found / printed."""
    seen, alike, others = Counter[tuple[str, str]](), Counter[tuple[str, str]](), []
    for one, found in projections(folder):
        for name, told in one.figures.items():
            key = (group(one), name)
            seen[key] += 1
            if agrees(found[name], told):
                alike[key] += 1
            else:
                others.append((one, name, found[name] / (told or 1.0)))
    return seen, alike, others


def group(one: Printed) -> str:
    """Say which logs a line belongs to."""
    kind = {"single": "data", "data": "data", "df": "data+filter", "ds": "data+spatial"}.get(
        one.case, _SPLITS.get(one.case, one.case)
    )
    return f"{kind}, {'scaling' if 'scaling' in one.log else 'ranking'} logs"


def cause(one: Printed, figure: str) -> str:
    """Say why a figure differs."""
    if figure == "compute":
        return "the last printed digit: sums of layers in another order"
    return "sizes and links of halos, a gather behind the last divided layer and sums by leaders change from log to log"
