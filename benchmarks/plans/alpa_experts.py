"""Alpa's GPT with experts on 16 to 64 V100, from runs on up to 8: plans that ran, beside the product's closed form.

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
from typing import Any

import numpy as np

from benchmarks.plans.alpa_experts_network import Shape, workload
from benchmarks.plans.alpa_latency import links
from benchmarks.plans.large_scores import Floats, Interval
from benchmarks.plans.one_plan import one_plan
from benchmarks.plans.paradl_data import rows as lines_of
from benchmarks.plans.scores import least_absolute
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
_ALPA, _DEEP = "alpa", "deepspeed"
_MOST_FITTED = 8
_OURS = "**cdmpp**"
_COMMAND = "python -m benchmarks.plans alpa_experts --data FOLDER --publish"


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
        return _DEEP if self.method == "deepspeed" else _ALPA

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
        strategy = Reducing(stage=2) if framework == _DEEP and each * replicas > 1 else DDP(overlap=False)
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
    replicas, each, many = (_DEEPSPEED if row.framework == _DEEP else _INTRA)[row.gpus]
    return _parts(*own, 1, replicas, each, many)


@dataclass(frozen=True)
class Judged:
    """Rows on 16 GPUs and more, and those that factors are fitted to."""

    few: Sequence[Row]
    many: Sequence[Row]
    every: Sequence[Row]

    def measured(self, rows: Sequence[Row]) -> Floats:
        return np.array([measured_s(self.every, row) for row in rows])

    def predicted(self, rows: Sequence[Row], without: Row | None = None) -> Floats:
        """Seconds by the factors of rows on few GPUs but one."""
        computing, tokens = self.factors(without)
        found = [parts(row) for row in rows]
        return np.array(
            [
                computing[row.framework] * one["compute"] + tokens * one["tokens"] + one["rest"]
                for row, one in zip(rows, found, strict=True)
            ]
        )

    def factors(self, without: Row | None = None) -> tuple[Mapping[str, float], float]:
        """Fit computing of each framework, and the exchange of tokens inside a node, by absolute relative errors."""
        own = [row for row in self.few if row is not without]
        found = [parts(row) for row in own]
        columns = [[one["compute"] * (row.framework == name) for name in (_ALPA, _DEEP)] + [one["tokens"]]
                   for row, one in zip(own, found, strict=True)]  # fmt: skip
        fixed = np.array([one["rest"] for one in found])
        alpa, deep, tokens = least_absolute(np.array(columns), fixed, self.measured(own))
        return {_ALPA: float(alpa), _DEEP: float(deep)}, float(tokens)

    @property
    def interval(self) -> Interval:
        """That of rows on few GPUs, each by the others."""
        found = np.array([self.predicted([row], row)[0] for row in self.few])
        return Interval.of(found, self.measured(self.few))


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge plans on the folder ``alpa-osdi22`` of ``data``."""
    every = read(data / "alpa-osdi22")
    known = [row for row in every if not row.why_not]
    few = [row for row in known if row.gpus <= _MOST_FITTED]
    own = Judged(few, [row for row in known if row.gpus > _MOST_FITTED], every)
    return [_scores(own), _by_row(own)]


def _scores(own: Judged) -> dict[str, Any]:
    measured, predicted = own.measured(own.many), own.predicted(own.many)
    nominal = np.array([sum(parts(row).values()) for row in own.many])
    constant = float(np.mean([row.tflops for row in own.few]))
    trivial = measured * [row.tflops / constant for row in own.many]
    others = [row for row in own.every if row.why_not and row.gpus > _MOST_FITTED]
    table = list[list[str]]()
    is_alpa = np.array([row.framework == _ALPA for row in own.many])
    for title, chosen in (("all that are answered", np.ones_like(is_alpa)), ("of these, Alpa's", is_alpa)):
        for way, seconds in (
            ("constant TFLOPS (trivial)", trivial),
            ("cdmpp, nothing fitted", nominal),
            (_OURS, predicted),
        ):
            off = 100 * np.abs(seconds[chosen] / measured[chosen] - 1)
            covered = f"{own.interval.covered(predicted[chosen], measured[chosen]):.0f}" if way == _OURS else ""
            table.append([title, str(len(off)), way, f"{off.mean():.1f}", f"{np.median(off):.1f}", covered])
    computing, tokens = own.factors()
    inside = 100 * np.abs(own.predicted(own.few) / own.measured(own.few) - 1)
    note = (
        "Seconds of a step of 1,024 examples with experts in every second block, on up to eight p3.16xlarge. Plans "
        "are those that the artifact names, as plans of the product: stages, replicas, and experts divided over the "
        "GPUs of a stage, blocks that run forward again, exchanges that nothing hides. The plan of 64 GPUs was not "
        "published: its stages are nodes, with as many micro-batches as its search had; of pipelines "
        "without divided operators the best number of micro-batches counts. DeepSpeed sends tokens as Alpa "
        "does, and its gradients as its configuration says (overlap_comm, reduce_scatter). Fitted to "
        f"runs on up to 8 GPUs alone: computing x {computing[_ALPA]:.2f} of Alpa and x {computing[_DEEP]:.2f} of "
        f"DeepSpeed, and x {tokens:.2f} what tokens take inside a node; links "
        "between nodes are on paper, 25 Gbit/s. On up to 8 GPUs the error "
        f"is {inside.mean():.1f} % (median {np.median(inside):.1f}). Not answered: "
        f"{'; '.join(row.why_not for row in others)}. The interval is that of the rows on up to 8 GPUs, each by the "
        "others."
    )
    return {
        "title": "Alpa: experts on 16 to 64 GPUs, from up to 8", "note": note, "commands": [_COMMAND],
        "columns": ["rows", "number", "predicted by", "MAPE, %", "median, %", "in interval, %"], "rows": table,
    }  # fmt: skip


def _by_row(own: Judged) -> dict[str, Any]:
    predicted, table = own.predicted(own.many), list[list[str]]()
    total = len(own.many)
    for row, seconds in zip(own.many, predicted, strict=True):
        measured, found = measured_s(own.every, row), parts(row)
        off = 100 * (seconds / measured - 1)
        computing, tokens = own.factors()
        told = "latency" if row.latency_s else "TFLOPS"
        table.append([
            row.method, str(row.gpus), told, f"{measured:.1f}", f"{seconds:.1f}", f"{off:+.0f}",
            f"{abs(off) / total:.1f}", f"{computing[row.framework] * found['compute']:.1f}",
            f"{tokens * found['tokens']:.1f}", f"{found['rest']:.1f}",
        ])  # fmt: skip
    return {
        "title": "Alpa: experts, what carries the error",
        "note": (
            "Row by row; points of the mean error. A third is DeepSpeed's on four nodes, whose gradients of every "
            "micro-batch would need 204 s on links of 25 Gbit/s, more than the whole step took. Stages of one GPU take "
            "half as long again on two nodes as on one, as those of Wide-ResNet did, and nothing tells why. How Alpa "
            "sends tensors from one mesh of GPUs to another is left out."
        ),
        "commands": [_COMMAND],
        "columns": ["method", "GPUs", "told", "measured, s", "predicted, s", "off, %", "points", "computing, s",
                    "tokens, s", "other exchanges, s"],
        "rows": table,
    }  # fmt: skip
