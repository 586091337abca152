"""Public figures of ParaDL (HPDC'21): layer tables, measured epochs and iterations, printed projections.

Repositories TruongThaoNguyen/paraDL-analysis, commit ce36803, and ankahira/paraDL, commit cc23ef0; the machine is
ABCI, four V100 with 16 GB a node, InfiniBand EDR. The files lie in the folder ``paradl`` of ``--data``.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from cdmpp.collectives.algorithms import around_nodes
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import Topology, fitted

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
