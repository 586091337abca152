"""Runs of Alpa's GPT with experts on V100: measured seconds, plans that ran, and what the product's closed form says.

Plans are those of github.com/alpa-projects/alpa, commit 8350d913: ``osdi22_artifact/suite_artifact_e2e_moe.py``
(``auto``), ``deepspeed/benchmark_moe.py``, ``benchmark/alpa/exp_intra_only.py`` and ``exp_inter_only.py``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.plans.alpa_experts_network import Shape, workload
from benchmarks.plans.alpa_latency import links
from benchmarks.plans.one_plan import one_plan
from benchmarks.plans.paradl_data import rows as lines_of
from cdmpp import devices
from cdmpp.errors import CdmppError
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.judge import Judge
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.expert import Expert
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.strategies.zero import ZeRO
from cdmpp.platform.paths import cache_root
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.step_graph import StepGraph

_SHAPES = {
    1: Shape(768, 8, 16, 8), 2: Shape(768, 8, 16, 16), 4: Shape(768, 16, 16, 16), 8: Shape(1024, 16, 16, 16),
    16: Shape(1536, 16, 16, 32), 32: Shape(2048, 16, 16, 48), 64: Shape(2048, 32, 16, 64),
}  # fmt: skip
"""GPUs -> network that is trained on them."""
_BATCH = 1024
_AUTO = {1: (1, 1, 512), 2: (1, 2, 32), 4: (2, 2, 32), 8: (2, 4, 32), 16: (2, 8, 16), 32: (8, 4, 128), 64: (8, 8, 64)}
"""GPUs -> stages, GPUs of each, micro-batches. Those of 64 were not published: 64 micro-batches, and as many stages as
there are nodes."""
_INTRA = {1: (1, 1, 32), 2: (1, 2, 32), 4: (1, 4, 16), 8: (1, 8, 16), 16: (2, 8, 32)}
"""GPUs -> replicas, GPUs that divide experts, micro-batches."""
_DEEPSPEED = {1: (1, 1, 128), 4: (1, 4, 32), 8: (2, 4, 16), 16: (2, 8, 8), 32: (4, 8, 8)}
"""The same; every micro-batch averages its gradients (ZeRO 2)."""
_STAGES = (64, 128, 256, 512, 1024)
"""Micro-batches that ``inter_only`` tried; the best counts."""
ALPA, DEEP = "alpa", "deepspeed"


@dataclass(frozen=True)
class Reducing(ZeRO):
    """ZeRO 2 as DeepSpeed ran it then: with ``reduce_scatter`` each rank got its slices by ``dist.reduce``.

    That moves as much as a reduce-scatter; later versions all-reduce buckets, as ``ZeRO`` has it.
    """

    def exchanges(self, graph: StepGraph, sizes: Mapping[str, int] | None = None) -> tuple[Exchange, ...]:
        """List the exchanges, with sums of gradients that only their owner gets."""
        every = super().exchanges(graph, sizes)
        return tuple(replace(one, kind="reduce_scatter") if one.kind == "all_reduce" else one for one in every)


@dataclass(frozen=True)
class Row:
    """One run of a network with experts."""

    method: str
    gpus: int
    latency_s: float
    """0: not told."""
    tflops: float

    @property
    def framework(self) -> str:
        """Return what ran it."""
        return DEEP if self.method == "deepspeed" else ALPA

    @property
    def shape(self) -> Shape:
        """Return the network."""
        return _SHAPES[self.gpus]

    @property
    def why_not(self) -> str:
        """Reason for which no prediction is made; empty: one is."""
        if self.method == "intra_only" and self.gpus > 16:
            return (
                f"intra_only, {self.gpus} GPUs: all of them divide every operator along one axis, which neither "
                f"{self.shape.heads} heads nor {self.shape.experts} experts allow; its authors drew a line through "
                "fewer examples"
            )
        if self.method == "deepspeed" and self.gpus not in _DEEPSPEED:
            return f"deepspeed, {self.gpus} GPUs: its plan was not published"
        return ""


def read(folder: Path) -> list[Row]:
    """Read the rows that ran from end to end; those of the ablation are other networks, with one micro-batch."""
    return [
        Row(
            one["method"].removeprefix("alpa."), int(one["hosts"]) * int(one["gpus_per_host"]),
            float(one["latency_s"] or 0), float(one["tflops_per_gpu"]),
        )
        for one in lines_of(folder / "results.csv")
        if (one["model"], one["failed"], one["suite"]) == ("moe", "False", "e2e")
    ]  # fmt: skip


def measured_s(every: Sequence[Row], row: Row) -> float:
    """Return the seconds of a step; where only TFLOPS are told, those of as many operations as another row counts.

    Of 64 GPUs that row has half of the operations that twice the blocks of 32 GPUs have: these are taken.
    """
    if row.latency_s:
        return row.latency_s
    gpus = min(row.gpus, 32)
    like = next(one for one in every if one.gpus == gpus and one.method == "intra_only")
    deeper = _SHAPES[row.gpus].layers / _SHAPES[gpus].layers
    return deeper * like.latency_s * like.tflops * gpus / (row.tflops * row.gpus)


@cache
def _source(shape: Shape) -> PredictedSource:
    return PredictedSource(workload(shape), devices.get("v100"))


@cache
def _parts(
    shape: Shape, gpus: int, framework: str, stages: int, replicas: int, each: int, many: int
) -> Mapping[str, float]:
    """Seconds of a plan: ``compute``, with the bubble and the update, and ``exposed``; they are kept in a file."""
    own = shape.layers // stages
    cuts = tuple(f"blocks.{own * number}" for number in range(1, stages)) or None
    text = json.dumps([2, asdict(shape), gpus, framework, stages, replicas, each, many, *(cuts or ())])
    path = cache_root() / "alpa-experts" / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"
    if not path.exists():
        degrees = ParallelDegrees(pp=stages, dp_replicate=replicas, ep=each)
        strategy = Reducing(stage=2) if framework == DEEP and each * replicas > 1 else DDP(overlap=False)
        pipeline, micro = Pipeline("1f1b", many, cuts), _BATCH // (replicas * each) // many
        plan = one_plan(strategy, (Expert(),) if each > 1 else (), pipeline, degrees, _BATCH, micro, recomputes=True)
        costs = Judge(_source(shape), is_gpu=True).closed_form(plan, links(gpus))
        if costs.errors:
            raise CdmppError(next(iter(costs.errors.values())))
        compute_s = float((costs.compute_s + costs.bubble_s + costs.update_s + costs.once_s)[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"compute": compute_s, "exposed": float(costs.exposed_s[0])}))
    found: dict[str, float] = json.loads(path.read_text())
    tokens_s = min(_tokens_s(shape, gpus, stages, replicas, each, many), found["exposed"])
    return {"compute": found["compute"], "tokens": tokens_s, "rest": found["exposed"] - tokens_s}


def _tokens_s(shape: Shape, gpus: int, stages: int, replicas: int, each: int, many: int) -> float:
    """Seconds in which tokens go to experts and come back, in three passes, of the slowest stage."""
    if each == 1:
        return 0.0
    rows = 2 * _BATCH * shape.sequence / (replicas * each * many)
    once_s = float(links(gpus).latency_s("all_to_all", np.array([2 * rows * shape.hidden]), range(each))[0])
    return 3 * 2 * many * max(shape.layers // 2 // stages, 1) * once_s


def parts(row: Row) -> Mapping[str, float]:
    """Return the parts of a row's plan; of several that were tried those of the fastest."""
    own = row.shape, row.gpus, row.framework
    if row.method == "inter_only":
        tried = [_parts(*own, row.gpus, 1, 1, many) for many in _STAGES]
        return min(tried, key=lambda one: sum(one.values()))
    if row.method == "auto":
        stages, each, many = _AUTO[row.gpus]
        return _parts(*own, stages, 1, each, many)
    replicas, each, many = (_DEEPSPEED if row.framework == DEEP else _INTRA)[row.gpus]
    return _parts(*own, 1, replicas, each, many)
