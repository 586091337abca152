"""Latency of Alpa's Wide-ResNets: of the plan that ran where it is published, else of the best that a method allows.

Stages of the oracle all have the same number of GPUs, which those of Alpa need not have: plans with stages are those of
``alpa_stages``, whose kernels and exchanges are the oracle's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from benchmarks.plans.alpa_rows import MEMORY_BYTES, Row, workload
from benchmarks.plans.alpa_solutions import AUTO, DATA, Stage, published
from benchmarks.plans.alpa_stages import Stages, searched
from benchmarks.plans.wide_resnet import empty
from cdmpp import devices
from cdmpp.collectives import interconnect
from cdmpp.collectives.cluster import Cluster
from cdmpp.collectives.topology import Topology, on_cluster
from cdmpp.plans.calibration import Calibration, Run, calibrate
from cdmpp.plans.candidates import VALID, Candidates, candidates
from cdmpp.plans.combinations import Combination, combination
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.judge import Judge
from cdmpp.plans.plan import plan_on
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.strategies import STRATEGIES

MICRO_BATCHES = {
    "auto": {1: 24, 2: 24, 4: 24, 8: 24, 16: 32, 32: 32, 64: 38},
    "intra_only": {1: 48, 2: 32, 4: 32, 8: 48, 16: 64, 32: 48, 64: 192},
    "ppdp": {1: 24, 2: 24, 4: 32, 8: 32, 16: 384},
    "inter_only": {1: 24, 2: 24, 4: 64, 8: 96, 16: 384},
    **dict.fromkeys(("auto_stage", "equal_mesh", "equal_layer", "equal_eqn"), {8: 32, 16: 32, 32: 32}),
}
"""Method -> GPUs -> micro-batches of a step, as the suites of ``alpa_solutions`` say.

``intra_only`` ran 128 and 256 images on 32 GPUs, 32 and 64 on 64, in micro-batches of 32 and 8: its authors drew a line
to 1,536 (``exp_intra_only.py``, ``exp_project_tflops.py`` of commit 675524a5).
"""
_SPACES = {
    "intra_only": ("data", "zero1", "zero2", "fsdp", "hsdp", "filter", "data+filter"),
    "data_parallel": ("data",),
    "zero_2": ("zero2",),
    "zero_3": ("fsdp",),
}
"""Method without stages -> strategies that it allows; those of the ablation allow ``_ALL``."""
_ALL = ("data", "zero1", "zero2", "fsdp")
_HOW = {"inter_only": DATA, "ppdp": DATA}
"""Method -> how each of its stages uses its GPUs, where it is not Alpa's pass that decides."""
_SIZES = (1, 2, 4, 8)
"""GPUs that a stage may have: of one node."""
_ALONE, _MOST_FITTED = ParallelDegrees(), 8
XLA_SHARE = 0.957
"""XLA counts so much of the multiplications of the convolutions: reported TFLOPS x latency of the rows that tell it."""


@dataclass(frozen=True)
class Said:
    """The oracle says this of a row."""

    step_s: float
    """NaN where there is no plan."""
    plan: str


def recomputes(row: Row) -> bool:
    """Return True for methods with pipelines, which run the forward pass again; their TFLOPS count that."""
    return not row.is_ablation and row.method != "intra_only"


def measured_s(row: Row) -> float:
    """Return the seconds of a step; where only rounded TFLOPS are told, those of as many operations."""
    if row.latency_s:
        return row.latency_s
    passes = 8 if recomputes(row) else 6
    operations = passes * XLA_SHARE * multiplications(row.network) * row.batch
    return operations / (1e12 * row.tflops * row.gpus)


@cache
def multiplications(network: tuple[int, int, int]) -> float:
    """Count the multiplications of one image in the forward pass."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        empty(*network)(torch.empty(1, 3, 224, 224, device="meta"))
    return counter.get_total_flops() / 2


@cache
def source(network: tuple[int, int, int]) -> PredictedSource:
    """Return a network (layers, channels, width), its kernels priced by the shipped model of PyTorch on V100."""
    return PredictedSource(workload(network, 2), devices.get("v100"))


@cache
def links(gpus: int) -> Topology:
    """Join GPUs of p3.16xlarge: eight V100 with NVLink a node, 25 Gbit/s between nodes."""
    name = "p3.16xlarge"
    inside, between = interconnect.get("nvlink2"), interconnect.get("ethernet-25g")
    return on_cluster(Cluster(name, name, "v100", 8, 8, inside, between, 1, "AWS"), gpus)


@cache
def calibrated(rows: tuple[Row, ...]) -> Calibration:
    """Fit computing to the runs on one GPU that tell their latency, links to those of data parallel and ZeRO."""
    own = {(one.gpus, one.latency_s): one for one in rows if one.latency_s and one.gpus <= _MOST_FITTED}
    chosen = [one for one in own.values() if one.gpus == 1 or one.method in ("data_parallel", "zero_2", "zero_3")]
    runs = [Run(plan_on(one.gpus), one.batch, one.latency_s) for one in chosen]
    found = calibrate(runs, lambda run, found: say(own[run.plan.ranks, run.iteration_s], found).step_s)
    return replace(found, holds_between_nodes=False)


@cache
def recomputing(rows: tuple[Row, ...]) -> float:
    """Fit how many times as long as predicted a step is that runs the forward pass again: the median of those rows.

    Only runs on few GPUs whose stages are published count, those of several names once; the cause is not known.
    """
    own = {(one.gpus, one.tflops): one for one in rows if published(one) and recomputes(one) and not one.failed}
    chosen = [one for one in own.values() if one.gpus <= _MOST_FITTED]
    return float(np.median([measured_s(one) / say(one, calibrated(rows)).step_s for one in chosen]))


def say(row: Row, found: Calibration, again: float = 1.0) -> Said:
    """Predict a row by the plan that ran, or the best that its method allows; ``again``: as ``recomputing``."""
    if not recomputes(row):
        return _of_oracle(row, found)
    pipeline = pipelines(row, found)
    stages = published(row) or _best_stages(row, pipeline)
    if stages is None:
        return Said(math.nan, "none")
    return Said(again * pipeline.step_s(stages), pipeline.words(stages))


@cache
def _pipelines(network: tuple[int, int, int], gpus: int, micro_batch: int, many: int, found: Calibration) -> Stages:
    return Stages(found.source(source(network)), found.topology(links(gpus)), micro_batch, many)


def pipelines(row: Row, found: Calibration) -> Stages:
    """Return what prices the stages of a row."""
    many = MICRO_BATCHES[row.method][row.gpus]
    return _pipelines(row.network, row.gpus, row.batch // many, many, found)


def _best_stages(row: Row, pipeline: Stages) -> tuple[Stage, ...] | None:
    """Search the stages of a method that nobody published."""
    layers, how = pipeline.count, _HOW.get(row.method, AUTO)
    every, sizes, merges = [range(layers + 1)], [_SIZES], True
    if row.method == "inter_only":
        sizes = [(1,)]
    elif row.method == "equal_mesh":
        sizes = [(one,) for one in _SIZES]
    elif row.method == "equal_layer":  # each of 1, 2, 4, ... equal parts is a stage
        every, merges = [range(0, layers + 1, layers // parts) for parts in (1, 2, 4, 8, 16)], False
    many = MICRO_BATCHES[row.method][row.gpus]
    found = [
        searched(pipeline, many, row.gpus, how, cuts=cuts, sizes=own, merges=merges) for cuts in every for own in sizes
    ]
    return min((one for one in found if one is not None), key=pipeline.step_s, default=None)


def _of_oracle(row: Row, found: Calibration) -> Said:
    """Return the oracle's best plan that a method without stages allows."""
    judge = Judge(found.source(source(row.network)), is_gpu=True)
    best, topology = Said(math.nan, "none"), found.topology(links(row.gpus))
    least = (math.inf, math.inf)
    for plans in _plans(row):
        costs = judge.closed_form(plans, topology)
        for place in np.flatnonzero(~np.isnan(costs.step_s)):
            key = precedence(float(costs.step_s[place]), float(costs.memory_bytes[place]), MEMORY_BYTES)
            if key < least:
                least, best = key, Said(key[1], _words(plans, int(place)))
    return best


def one_after_the_other_s(row: Row, found: Calibration) -> float:
    """Predict the seconds of a pipeline in which no two stages ever work at the same time, without messages."""
    many = MICRO_BATCHES[row.method][row.gpus]
    ops = found.source(source(row.network)).work(row.batch // many, _ALONE).rank.ops
    passes = {"forward": 2 if recomputes(row) else 1, "backward": 1}
    return many * sum(passes.get(op.phase, 0) * op.duration_s for op in ops)


def precedence(step_s: float, held_bytes: float, limit_bytes: float) -> tuple[float, float]:
    """Return what is least for the plan to choose: the fastest that fits, or the one that holds least."""
    return max(held_bytes, limit_bytes), step_s


def _plans(row: Row) -> Iterator[Candidates]:
    many = 1 if row.is_ablation else MICRO_BATCHES[row.method][row.gpus]
    for one in _combinations(row):
        every = candidates((one,), row.gpus, row.batch, source(row.network).limits())
        wanted = (every.reason == VALID) & (every.micro_batches == many) & (every.recompute == recomputes(row))
        if wanted.any():
            yield every.taken(wanted)


def _combinations(row: Row) -> Iterator[Combination]:
    """Gradients are views of buckets, and buckets hold one parameter; XLA does not compute while it exchanges."""
    for name in _SPACES.get(row.method, _ALL) if row.gpus > 1 else ("data",):
        one = combination(name)
        if one.strategy.name == "ddp":
            one = replace(one, strategy=STRATEGIES["ddp"](gradient_as_bucket_view=True))
        if name == "zero2":
            largest = max(g.bytes for g in source(row.network).work(2, _ALONE).rank.gradients) // 4
            one = replace(one, strategy=STRATEGIES["zero"](stage=2, bucket_elements=largest))
        yield replace(one, strategy=replace(one.strategy, overlap=False))


def _words(plans: Candidates, place: int) -> str:
    degrees = plans.degrees_of(place)
    found = " x ".join(f"{name} {getattr(degrees, name)}" for name in degrees.beyond_one()) or "one GPU"
    return f"{plans.combinations[int(plans.combination[place])].name} ({found})"
