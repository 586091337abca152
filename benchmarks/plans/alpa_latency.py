"""Latency of Alpa's Wide-ResNets: the oracle's best plan that a method allows, beside what was measured.

Stages of the oracle all have the same number of GPUs, which those of Alpa need not have. Memory is a limit where the
oracle has all plans of a method; it is none where Alpa divides operators inside stages, which the oracle does for
convolutions without a pipeline only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from benchmarks.plans.alpa_rows import ABLATION_BATCH, BATCH, MEMORY_BYTES, NETWORKS, Row, workload
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
    "auto": {1: 24, 2: 24, 4: 24, 8: 24, 16: 32, 32: 32, 64: 32},
    "intra_only": {1: 48, 2: 32, 4: 32, 8: 48, 16: 64, 32: 48, 64: 48},
    "ppdp": {1: 24, 2: 24, 4: 32, 8: 32, 16: 384, 32: 768, 64: 768},
    "inter_only": {1: 24, 2: 24, 4: 64, 8: 96, 16: 384, 32: 768, 64: 768},
    **dict.fromkeys(("auto_stage", "equal_mesh", "equal_layer", "equal_eqn"), {8: 32, 16: 32, 32: 32}),
}
"""Method -> GPUs -> micro-batches of a batch of 1,536; at 64 GPUs those of 32, which the artifact does not tell."""
_SPACES = {
    "intra_only": ("data", "zero1", "zero2", "fsdp", "hsdp", "filter", "data+filter"),
    "ppdp": ("data", "pipeline", "data+pipeline"),
    "inter_only": ("pipeline",),
    "data_parallel": ("data",),
    "zero_2": ("zero2",),
    "zero_3": ("fsdp",),
}
"""Method -> strategies that it allows; all others allow ``_ALL``."""
_ALL = ("data", "zero1", "zero2", "fsdp", "pipeline", "data+pipeline", "zero1+pipeline", "fsdp+pipeline")
_ALONE, _MOST_FITTED = ParallelDegrees(), 8
XLA_SHARE = 0.957
"""XLA counts so much of the multiplications of the convolutions: reported TFLOPS x latency of the rows that tell it."""


@dataclass(frozen=True)
class Said:
    """What the oracle says of a row."""

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
    operations = passes * XLA_SHARE * multiplications(row.gpus) * batch_of(row)
    return operations / (1e12 * row.tflops * row.gpus)


@cache
def multiplications(gpus: int) -> float:
    """Count the multiplications of one image in the forward pass."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        empty(*NETWORKS[gpus])(torch.empty(1, 3, 224, 224, device="meta"))
    return counter.get_total_flops() / 2


@cache
def source(gpus: int) -> PredictedSource:
    """Return the network of so many GPUs, its kernels priced by the shipped model of PyTorch on V100."""
    return PredictedSource(workload(gpus, 2), devices.get("v100"))


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
    runs = [Run(plan_on(one.gpus), batch_of(one), one.latency_s) for one in chosen]
    found = calibrate(runs, lambda run, found: say(own[run.plan.ranks, run.iteration_s], found).step_s)
    return replace(found, holds_between_nodes=False)


@cache
def recomputing(rows: tuple[Row, ...]) -> float:
    """Fit how many times as long as predicted a step is that runs the forward pass again: the median of those rows.

    Only runs on few GPUs count, and only those of a whole batch; the cause is not known.
    """
    chosen = [one for one in rows if one.gpus <= _MOST_FITTED and not one.failed and recomputes(one)]
    return float(np.median([measured_s(one) / say(one, calibrated(rows)).step_s for one in chosen]))


def say(row: Row, found: Calibration, again: float = 1.0) -> Said:
    """Find the best plan that the row's method allows; ``again``: as ``recomputing``."""
    judge = Judge(found.source(source(row.gpus)), is_gpu=True)
    limit = MEMORY_BYTES if row.method in _SPACES else math.inf
    best, topology = Said(math.nan, "none"), found.topology(links(row.gpus))
    least = (math.inf, math.inf)
    for plans in _plans(row):
        costs = judge.closed_form(plans, topology)
        for place in np.flatnonzero(~np.isnan(costs.step_s)):
            key = precedence(float(costs.step_s[place]), float(costs.memory_bytes[place]), limit)
            if key < least:
                least, best = key, Said(key[1], _words(plans, int(place)))
    return replace(best, step_s=best.step_s * again) if recomputes(row) else best


def one_after_the_other_s(row: Row, found: Calibration) -> float:
    """Predict the seconds of a pipeline in which no two stages ever work at the same time, without messages."""
    many = MICRO_BATCHES[row.method][row.gpus]
    ops = found.source(source(row.gpus)).work(batch_of(row) // many, _ALONE).rank.ops
    passes = {"forward": 2 if recomputes(row) else 1, "backward": 1}
    return many * sum(passes.get(op.phase, 0) * op.duration_s for op in ops)


def precedence(step_s: float, held_bytes: float, limit_bytes: float) -> tuple[float, float]:
    """Return what is least for the plan to choose: the fastest that fits, or the one that holds least."""
    return max(held_bytes, limit_bytes), step_s


def batch_of(row: Row) -> int:
    """Return the examples of one step."""
    return ABLATION_BATCH if row.is_ablation else BATCH


def _plans(row: Row) -> Iterator[Candidates]:
    many = 1 if row.is_ablation else MICRO_BATCHES[row.method][row.gpus]
    for one in _combinations(row):
        every = candidates((one,), row.gpus, batch_of(row), source(row.gpus).limits())
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
            largest = max(g.bytes for g in source(row.gpus).work(2, _ALONE).rank.gradients) // 4
            one = replace(one, strategy=STRATEGIES["zero"](stage=2, bucket_elements=largest))
        yield replace(one, strategy=replace(one.strategy, overlap=False))


def _words(plans: Candidates, place: int) -> str:
    degrees = plans.degrees_of(place)
    found = " x ".join(f"{name} {getattr(degrees, name)}" for name in degrees.beyond_one()) or "one GPU"
    return f"{plans.combinations[int(plans.combination[place])].name} ({found})"
