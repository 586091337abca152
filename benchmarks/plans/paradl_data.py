"""Public figures of ParaDL (HPDC'21): layer tables, measured epochs and iterations, printed projections.

Repositories TruongThaoNguyen/paraDL-analysis, commit ce36803, and ankahira/paraDL, commit cc23ef0; the machine is
ABCI, four V100 with 16 GB a node, InfiniBand EDR. The files lie in the folder ``paradl`` of ``--data``.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.plans.layer_table import Layer, LayerTable
from cdmpp.collectives.algorithms import around_nodes
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.fitted_nodes import fitted_nodes
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import Topology, fitted
from cdmpp.plans.calibration import Calibration, Predicted, Run, calibrate
from cdmpp.plans.plan import plan_on

GPUS_PER_NODE = 4
INSIDE = AlphaBeta(9e-6, 1 / 50e9)
"""The link that the authors' tool takes inside a node."""
_BANDWIDTH = 12.5e9
_STARTS_S = ((68, 30.31e-6), (136, 30.49e-6), (2**16, 30.98e-6))
"""Most GPUs -> start-up between nodes of the authors' tool: one leaf switch, one rack, several."""


def between(gpus: int) -> AlphaBeta:
    """Return the link between nodes that the authors' tool takes for so many GPUs."""
    return AlphaBeta(next(start_s for most, start_s in _STARTS_S if gpus <= most), 1 / _BANDWIDTH)


def ring(gpus: int) -> Topology:
    """Join GPUs by one NCCL ring through all nodes, with the links of the authors' tool."""
    nodes = max(1, gpus // GPUS_PER_NODE)
    return fitted(around_nodes(INSIDE, between(gpus), gpus, nodes), gpus, "nccl")


@dataclass(frozen=True)
class Trained:
    """Training logs of one job."""

    model: str
    strategy: str
    gpus: int
    batch: int
    iteration_s: float


def weights(folder: Path, model: str) -> int:
    """Count the weights of a network in its layer table."""
    return sum(int(row["w_items"]) for row in rows(folder / "layers.csv") if row["model"] == model)


def trained(folder: Path) -> list[Trained]:
    """Read the median iterations of jobs whose number of GPUs is known."""
    return [
        Trained(
            row["model"],
            row["strategy"],
            int(row["gpus"]),
            int(row["global_batch_derived"]),
            float(row["median_s_per_iter"]),
        )
        for row in rows(folder / "training_logs.csv")
        if row["gpus"]
    ]


def rows(path: Path) -> list[dict[str, str]]:
    """Read a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@cache
def layer_table(folder: Path, model: str) -> LayerTable:
    """Read the layers of a network, with the tool's spread of the one measured time over them."""
    own = [row for row in rows(folder / "layers.csv") if row["model"] == model]
    whole_s = float(own[0]["whole_model_s_per_sample"])
    spread_s = sum(float(row["spread_s_per_sample"] or 0.0) for row in own)
    return LayerTable(tuple(_layer(row, whole_s / spread_s if spread_s else 0.0) for row in own))


def _layer(row: dict[str, str], factor: float) -> Layer:
    kernel = _shape(row["w_shape_c_f_kernel"])[2:]
    divides = {what for what in ("filter", "space") if row[f"split_by_{what}"] == "1"}
    return Layer(
        row["layer"],
        int(row["x_items"]),
        int(row["w_items"]),
        int(row["y_items"]),
        factor * float(row["spread_s_per_sample"] or 0.0),
        _shape(row["x_shape_c_spatial"]),
        kernel if any(kernel) else (),
        frozenset(divides),
    )


def _shape(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")))


def abci(gpus: int, inside: float = 1.0, outside: float = 1.0, adapters: int = 2) -> Topology:
    """Join GPUs of the machine: NVLink inside nodes, two EDR adapters a node, with the tool's start-ups.

    ``inside`` and ``outside`` are shares of the bandwidth that are reached.
    """
    near, far = AlphaBeta(INSIDE.alpha_s, INSIDE.beta_s / inside), between(gpus)
    nodes = max(1, gpus // GPUS_PER_NODE)
    reached = AlphaBeta(far.alpha_s, far.beta_s / outside)
    return fitted_nodes(near, reached, gpus, nodes, min(adapters, gpus // nodes))


def data_parallel_s(folder: Path, model: str) -> dict[int, float]:
    """Return GPUs -> seconds of an iteration of data parallel training."""
    return {one.gpus: one.iteration_s for one in trained(folder) if (one.model, one.strategy) == (model, "data")}


@cache
def data_parallel_share(folder: Path) -> float:
    """Return the share of the bandwidth that the 8-GPU data parallel run of ResNet-50 reaches."""
    own, n_bytes = data_parallel_s(folder, "resnet"), 4 * weights(folder, "resnet50")
    runs = [Run(plan_on(gpus), 64 * gpus, own[gpus]) for gpus in (1, 8)]
    return calibrate(runs, one_ring(own[1], n_bytes)).bandwidth


def one_ring(alone_s: float, n_bytes: int) -> Predicted:
    """Predict data parallel steps as ChainerMN runs them: all gradients after the backward pass, in one ring."""

    def predicted_s(run: Run, found: Calibration) -> float:
        links = found.topology(ring(run.plan.ranks))
        reduced = Collective("all_reduce", n_bytes, run.plan.ranks)
        return found.compute * alone_s + links.whole(reduced).latency_s

    return predicted_s
