"""Alpa's Wide-ResNets on V100 (OSDI'22 artifact): rows of ``alpa-osdi22/results.csv``, and the networks behind them.

Networks, batches and numbers of micro-batches are those of the artifact (github.com/alpa-projects/alpa, commit
8350d913).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from benchmarks.plans.paradl_data import rows
from benchmarks.plans.wide_resnet import empty
from cdmpp.network.workload import Workload

NETWORKS = {
    1: (50, 160, 2),
    2: (50, 224, 2),
    4: (50, 320, 2),
    8: (50, 448, 2),
    16: (50, 640, 2),
    32: (50, 320, 16),
    64: (50, 320, 32),
}
"""GPUs -> layers, channels, width of the network that is trained on them."""
_AUTO_64, _AUTO_64_BATCH = (101, 320, 16), 1520
"""The plan of ``auto`` on 64 GPUs has the 33 blocks of the deeper network of 12.6 billion parameters."""
BATCH, ABLATION_BATCH = 1536, 32
MEMORY_BYTES = 0.9 * 16 * 2**30
"""JAX takes nine tenths of the 16 GB of a V100."""


@dataclass(frozen=True)
class Row:
    """One run."""

    suite: str
    gpus: int
    method: str
    peak_bytes: float
    """0: not told."""
    latency_s: float
    """A step takes so long; 0: not told."""
    tflops: float
    """Each GPU reaches so many, without recomputing."""
    failed: bool
    """It ran out of memory."""

    @property
    def is_ablation(self) -> bool:
        """Return True for the runs of one micro-batch that compare ways to divide operators."""
        return self.suite.startswith("intra")

    @property
    def network(self) -> tuple[int, int, int]:
        """Return layers, channels and width of what was trained."""
        return _AUTO_64 if (self.method, self.gpus) == ("auto", 64) else NETWORKS[self.gpus]

    @property
    def batch(self) -> int:
        """Return the examples of one step."""
        if self.is_ablation:
            return ABLATION_BATCH
        return _AUTO_64_BATCH if (self.method, self.gpus) == ("auto", 64) else BATCH


def read(folder: Path) -> list[Row]:
    """Read the rows of Wide-ResNet."""
    return [
        Row(
            row["suite"],
            int(row["hosts"]) * int(row["gpus_per_host"]),
            row["method"].removeprefix("alpa."),
            float(row["peak_mem_gb"] or 0) * 2**30,
            float(row["latency_s"] or 0),
            float(row["tflops_per_gpu"]),
            row["failed"] == "True",
        )
        for row in rows(folder / "results.csv")
        if row["model"] == "wresnet"
    ]


@cache
def workload(network: tuple[int, int, int], batch: int) -> Workload:
    """Return one step of a network, momentum as they trained it, without memory for its weights.

    Args:
        network: layers, channels, width.
        batch: images.
    """
    return Workload(empty(*network), torch.empty(batch, 3, 224, 224, device="meta"), optimizer="sgd")
