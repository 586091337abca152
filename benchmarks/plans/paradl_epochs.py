"""Measured epochs of ParaDL's technical report (table VIII), and the plans behind them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from benchmarks.plans.layer_table import columns
from benchmarks.plans.paradl_data import GPUS_PER_NODE, rows
from cdmpp.plans.candidates import Candidates

SAMPLES = 1_281_167
_BATCH = {"resnet50": 64, "vgg": 32}
"""Examples of one step of each group of ranks that share a model."""
_SPATIAL_BATCH = {"resnet50": 256, "vgg": 32}
"""The same of spatial+data: ResNet-50 runs 256 a node "vs. 64", VGG-16 as many as filter+data (ranking of the report).
"""
_MODELS = {"ResNet50": "resnet50", "VGG16": "vgg"}
SPATIAL = "spatial+data"


@dataclass(frozen=True)
class Epoch:
    """One row of the report's table VIII: seconds of one epoch."""

    model: str
    gpus: int
    strategy: str
    compute_s: float
    communication_s: float
    total_s: float
    paradl_s: float
    """The authors' tool projected this for the total."""
    adds_up: bool

    @property
    def is_hybrid(self) -> bool:
        return "+" in self.strategy

    @property
    def group_batch(self) -> int:
        """Examples of one step of a group of ranks that share a model."""
        return (_SPATIAL_BATCH if self.strategy == SPATIAL else _BATCH)[self.model]

    @property
    def batch(self) -> int:
        """Examples of one step of all ranks."""
        return self.group_batch * self.replicas

    @property
    def split(self) -> str:
        """Return the degree that divides the model."""
        return self.strategy.split("+")[0]

    @property
    def inside(self) -> int:
        """Return the ranks that divide the model: those of a node under hybrids."""
        return GPUS_PER_NODE if self.is_hybrid else self.gpus

    @property
    def replicas(self) -> int:
        return self.gpus // self.inside

    @property
    def columns(self) -> Candidates:
        """Return the plan."""
        return columns(self.split, self.inside, self.replicas, self.batch)

    @property
    def steps(self) -> int:
        return math.ceil(SAMPLES / self.batch)


def epochs(folder: Path) -> list[Epoch]:
    """Read the table."""
    return [
        Epoch(
            _MODELS[row["model"]],
            int(row["gpus"]),
            row["strategy"],
            float(row["measured_compute_s"]),
            float(row["measured_comm_s"]),
            float(row["measured_total_s"]),
            float(row["paradl_total_s"]),
            row["parts_add_up"] == "1",
        )
        for row in rows(folder / "epoch_table.csv")
    ]
