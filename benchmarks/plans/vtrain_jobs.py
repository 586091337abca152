"""vTrain's measured steps of GPT on A100, and the same plans as jobs of the product."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.plans.large_job import Job, Links, MeasuredJobs, Stages
from benchmarks.plans.large_pieces import BLOCK, EMBEDDING, READ_BLOCKS, Exchange, Pieces, pieces_of
from benchmarks.plans.megatron_network import GPT, Shape, loss
from cdmpp import Workload, devices
from cdmpp.collectives.topology import topology_of
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.predicted import PredictedSource

Floats = NDArray[np.float64]
_NODE = 8
_ELEMENT_BYTES = 2
_REACHED = 0.9
"""Share of the memory's bandwidth that a kernel reaches which only adds."""


@dataclass(frozen=True)
class Row:
    """One measured step."""

    shape: Shape
    gpus: int
    global_batch: int
    micro_batch: int
    tensor: int
    data: int
    pipeline: int
    step_s: float

    @property
    def micro_batches(self) -> int:
        """Return the micro-batches of a step on one replica."""
        return self.global_batch // self.data // self.micro_batch


def read(path: Path) -> list[Row]:
    """Read one of the two tables."""
    found = []
    for row in csv.DictReader(path.read_text().splitlines()):
        number = {name: int(row[name]) for name in row if name not in ("iteration_ms", "params_billion")}
        shape = Shape(number["hidden"], number["heads"], number["layers"], number["seq_length"])
        found.append(
            Row(
                shape, number["gpus"], number["global_batch"], number["micro_batch"], number["tp"], number["dp"],
                number["pp"], 1e-3 * float(row["iteration_ms"]),
            )
        )  # fmt: skip
    return found


@cache
def _source(shape: Shape, tensor: int, device: str) -> PredictedSource:
    import torch

    with torch.device("meta"):
        network = GPT(replace(shape, layers=READ_BLOCKS), tensor).half().train()
    inputs = (torch.zeros(2, shape.sequence, dtype=torch.long),)
    workload = Workload(network, inputs, loss=loss, optimizer="adamw-fused", mode="training_step")
    return PredictedSource(workload, devices.get(device))


@cache
def pieces(shape: Shape, tensor: int, micro_batch: int, device: str) -> Pieces:
    """Return what one of the ranks runs that divide the layers of a GPT; ``shape`` has no layers."""
    values = micro_batch * shape.sequence
    whole = Exchange("all_reduce", _ELEMENT_BYTES * values * shape.hidden)
    scores = Exchange("all_reduce", 4 * values)

    def exchanges(piece: str, phase: str) -> Sequence[Exchange]:
        if piece == BLOCK:
            return (whole, whole)
        if piece == EMBEDDING:
            return (whole,) if phase == "forward" else ()
        return (replace(scores, times=3),) if phase == "forward" else (whole,)

    work = _source(shape, tensor, device).work(micro_batch, ParallelDegrees())
    return pieces_of(work, _ELEMENT_BYTES, exchanges)


@cache
def links(gpus: int) -> Links:
    """Return those of nodes of eight A100."""
    return Links(topology_of(max(gpus, _NODE), "a100", "dgx-a100", can_grow=True))


@cache
def _stages(
    shape: Shape, gpus: int, micro_batch: int, tensor: int, data: int, pipeline: int, recomputes: bool, device: str
) -> Stages:
    own = pieces(replace(shape, layers=0), tensor, micro_batch, device)
    embedding, bandwidth = shape.entries(tensor) * shape.hidden, devices.get(device).spec["bandwidth_gbps"] or 0.0
    return Stages(
        own.recomputed if recomputes else own, links(gpus), tensor, data, (shape.layers // pipeline,) * pipeline,
        _ELEMENT_BYTES * micro_batch * shape.sequence * shape.hidden, shape.block_parameters(tensor),
        embedding + shape.sequence * shape.hidden, embedding if pipeline > 1 else 0, _REACHED * 1e9 * bandwidth,
        embedding if pipeline > 1 else 0,
    )  # fmt: skip


def job(row: Row, recomputes: bool, device: str) -> Job:
    """Return a measured plan as a job."""
    plan = row.micro_batch, row.tensor, row.data, row.pipeline
    return Job(_stages(row.shape, row.gpus, *plan, recomputes, device), row.micro_batches)


@dataclass(frozen=True)
class Jobs(MeasuredJobs[Row]):
    """Measured plans as jobs."""

    @classmethod
    def of(cls, rows: Sequence[Row], recomputes: bool = False, device: str = "a100") -> Jobs:
        """Make jobs of rows; ``recomputes``: blocks run forward again in the backward pass."""
        return cls(tuple(rows), tuple(job(row, recomputes, device) for row in rows))
