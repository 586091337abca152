"""nanotron's sweep of Llamas on up to 512 H100, and the same plans as jobs of the product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.plans.large_job import Job, Links, MeasuredJobs, Stages
from benchmarks.plans.large_pieces import BLOCK, EMBEDDING, READ_BLOCKS, Exchange, Pieces, pieces_of
from benchmarks.plans.megatron_network import Shape, loss
from benchmarks.plans.nanotron_network import Llama
from cdmpp import Workload, devices
from cdmpp.collectives.topology import topology_of
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.predicted import PredictedSource

Floats = NDArray[np.float64]
_DEVICE, _CLUSTER, _NODE = "h100", "dgx-h100", 8
_ELEMENT_BYTES, _GRADIENT_BYTES = 2, 4
_REACHED, _STALLING = 0.9, 512
"""Share of the memory's bandwidth that a kernel reaches which only adds; GPUs from which on each slot of a pipeline
takes about a second, whatever it computes: on fewer only some jobs do."""


@dataclass(frozen=True)
class Row:
    """One configuration that was run."""

    model: str
    shape: Shape
    tied: bool
    nodes: int
    data: int
    pipeline: int
    tensor: int
    zero: int
    micro_batch: int
    micro_batches: int
    ran: bool
    clean: bool
    """True if it ran, with as many examples as it says, and no other run of the same plan says otherwise."""
    step_s: float

    @property
    def gpus(self) -> int:
        """Return the GPUs of the job."""
        return _NODE * self.nodes


def read(path: Path) -> list[Row]:
    """Read the table."""
    found = []
    for one in pq.read_table(path).to_pylist():
        shape = Shape(one["hidden"], one["heads"], one["layers"], one["seq_len"], one["vocab"], one["ffn"])
        ran = one["status"] == "ok"
        found.append(
            Row(
                one["model"], shape, one["tied_embeddings"], one["nodes"], one["dp"], one["pp"], one["tp"],
                one["zero_stage"], one["mbs"], one["grad_accum"], ran,
                bool(ran and one["consistent"] and not one["suspect_slow"] and not one["also_failed"]),
                one["step_s"] or float("nan"),
            )
        )  # fmt: skip
    return found


def blocks_of(shape: Shape, stages: int) -> tuple[int, ...]:
    """Share out blocks as nanotron does, by what blocks and the head compute.

    A stage takes pieces until what it and the stages before it have exceeds its share of all; the head is a piece.
    """
    block = 4 * shape.hidden**2 + 3 * shape.inner * shape.hidden
    costs = [0, *[block] * shape.layers, 0, shape.vocabulary * shape.hidden]
    shares, found, stage = [sum(costs) * (one + 1) / stages for one in range(stages)], [0] * stages, 0
    for place, whole in enumerate(np.cumsum(costs).tolist()):
        found[stage] += 1 <= place <= shape.layers
        if whole > shares[stage] and stage + 1 < stages:
            stage += 1
    return tuple(found)


@cache
def _source(shape: Shape, tied: bool, tensor: int) -> PredictedSource:
    import torch

    with torch.device("meta"):
        network = Llama(replace(shape, layers=READ_BLOCKS), tensor, tied).bfloat16().train()
    inputs = (torch.zeros(2, shape.sequence, dtype=torch.long),)
    workload = Workload(network, inputs, loss=loss, optimizer="adamw-fused", mode="training_step")
    return PredictedSource(workload, devices.get(_DEVICE))


@cache
def pieces(shape: Shape, tied: bool, tensor: int, micro_batch: int) -> Pieces:
    """Return what one of the tensor ranks runs; ``shape`` has no layers."""
    values = micro_batch * shape.sequence
    size = _ELEMENT_BYTES * values * shape.hidden
    gathered, scattered = Exchange("all_gather", size), Exchange("reduce_scatter", size)
    scores = Exchange("all_reduce", 4 * values, 3)

    def exchanges(piece: str, phase: str) -> Sequence[Exchange]:
        if piece == BLOCK and phase == "forward":
            return (gathered, scattered) * 2
        if piece == BLOCK:  # what a product of columns reads is gathered again for the gradient of its weight
            return (gathered, gathered, scattered) * 2
        if piece == EMBEDDING:
            return (scattered,) if phase == "forward" else (gathered,)
        return (gathered, scores) if phase == "forward" else (gathered, scattered)

    work = _source(shape, tied, tensor).work(micro_batch, ParallelDegrees())
    return pieces_of(work, _ELEMENT_BYTES, exchanges, tensor)


@cache
def links(gpus: int) -> Links:
    """Return those of nodes of eight H100."""
    return Links(topology_of(max(gpus, _NODE), _DEVICE, _CLUSTER, can_grow=True))


@cache
def _stages(
    shape: Shape, tied: bool, gpus: int, micro_batch: int, tensor: int, data: int, pipeline: int, zero: int
) -> Stages:
    own = pieces(replace(shape, layers=0), tied, tensor, micro_batch)
    embedding = shape.vocabulary * shape.hidden // tensor
    block = (4 * shape.hidden**2 + 3 * shape.inner * shape.hidden) // tensor + 2 * shape.hidden
    is_apart = pipeline > 1 or not tied
    return Stages(
        own, links(gpus), tensor, data, blocks_of(shape, pipeline),
        _ELEMENT_BYTES * micro_batch * shape.sequence * shape.hidden // tensor, block, embedding,
        embedding if is_apart else 0, _REACHED * 1e9 * (devices.get(_DEVICE).spec["bandwidth_gbps"] or 0.0),
        embedding if tied and pipeline > 1 else 0, _GRADIENT_BYTES, gpus >= _STALLING,
        _ELEMENT_BYTES if zero and data > 1 else 0,
    )  # fmt: skip


def job(row: Row) -> Job:
    """Return a plan as a job."""
    plan = row.micro_batch, row.tensor, row.data, row.pipeline, row.zero
    return Job(_stages(row.shape, row.tied, row.gpus, *plan), row.micro_batches)


@dataclass(frozen=True)
class Jobs(MeasuredJobs[Row]):
    """Plans as jobs."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Jobs:
        """Make jobs of rows."""
        return cls(tuple(rows), tuple(map(job, rows)))
