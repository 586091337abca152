"""One torchtitan job under any of its strategies: seconds by what they are spent on, as the product predicts them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cache

from benchmarks.plans.language_models import LanguageModel, source_of
from cdmpp import devices
from cdmpp.collectives.topology import Topology, topology_of
from cdmpp.devices import Device
from cdmpp.network.precision import Scaling
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.fsdp_reserved import fsdp_reserved
from cdmpp.plans.lower import Lowered, lower_work
from cdmpp.plans.plan import Plan
from cdmpp.plans.rank_memory import held_stages, parts_of_stages
from cdmpp.plans.sources.compiled import CompiledSource
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.sources.source import RankWork, StepSource
from cdmpp.plans.sources.sustained import ATTENTION, PRODUCTS, SustainedSource
from cdmpp.plans.strategies.context import Context
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.strategies.tensor import Tensor
from cdmpp.platform.paths import cache_root
from cdmpp.steps.replay import replay
from cdmpp.steps.strategy import Strategy
from cdmpp.steps.transforms.merge_ops import merge_ops

MEMORY, CASTS, UPDATE, COPIES, EXPOSED = (
    "other kernels",
    "casts",
    "update",
    "copies and NCCL's share",
    "exposed, bubble",
)
PARTS = (PRODUCTS, ATTENTION, MEMORY, CASTS, UPDATE, COPIES, EXPOSED)
"""They sum up to the step."""
_KINDS = {"dense": PRODUCTS, "matmul": ATTENTION}
_ATTENTION = "flash"
"""PyTorch took FlashAttention-2 before cuDNN's kernel until 2.9, and torchtitan asks for it first on Hopper."""
_VERSION = 8


@dataclass(frozen=True)
class TitanJob:
    """These settings of a job decide what a step takes."""

    model: LanguageModel
    sequence: int
    device: str
    cluster: str
    degrees: ParallelDegrees
    batch: int
    """Examples of a replica."""
    recompute: str = "none"
    every: int = 0
    """One of so many blocks runs again in the backward pass; 0: none, beside what ``recompute`` says."""
    is_compiled: bool = False
    has_loss: bool = False
    """True if the loss is compiled, too."""
    float8: Scaling | None = None
    async_tp: bool = False
    schedule: str = ""
    spec: tuple[tuple[str, float], ...] = ()
    """Numbers of the device that are others than described."""
    power_limit_w: float | None = None
    """Watts to which boards are limited; None: their own limit."""

    @property
    def sheet(self) -> Device:
        """Return the device of each rank."""
        return devices.get(self.device).with_spec(**dict(self.spec))

    @property
    def links(self) -> Topology:
        """Return the links of the job."""
        return topology_of(self.degrees.ranks, self.device, cluster=self.cluster, can_grow=True)

    def parts(self) -> dict[str, float]:
        """Return the seconds of a step by ``PARTS``, ``bytes`` of the rank that holds most, and the interval."""
        text = json.dumps([_VERSION, asdict(self)], sort_keys=True)
        path = cache_root() / "fsdp-jobs" / f"titan-{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self._parts()))
        found: dict[str, float] = json.loads(path.read_text())
        return found

    @property
    def plan(self) -> Plan:
        """Return the plan, as torchtitan runs these settings."""
        dividing = list[Strategy]()
        if self.degrees.tp > 1:  # PrepareModuleInput gathers once for layers that read the same
            dividing.append(Tensor(sequence_parallel=True, shared_inputs=True, async_tp=self.async_tp))
        if self.degrees.cp > 1:
            dividing.append(Context(repeat_heads=True))  # as its Llama does, before attention
        if self.degrees.pp > 1:
            dividing.append(self._pipeline())
        again = tuple(f"inner.model.layers.{place}" for place in range(0, self.model.layers, self.every or 1))
        return Plan(
            FSDP(scatter_each_batch=self.degrees.pp == 1), self.degrees, recompute=again if self.every else (),
            model_parallel=tuple(dividing),
        )  # fmt: skip

    def _pipeline(self) -> Pipeline:
        """As many micro-batches as ranks; the first and the last stage have a block less where blocks are left over."""
        each = 2 if self.schedule == "interleaved1f1b" else 1
        stages = self.degrees.pp * each
        few, left = divmod(self.model.layers, stages)
        begins = [few]
        for place in range(1, stages - 1):
            begins.append(begins[-1] + few + (place <= left))
        cuts = tuple(f"inner.model.layers.{block}" for block in begins)
        more = {"stages_per_rank": each} if each > 1 else {}
        return Pipeline(self.schedule, self.degrees.pp, cuts, **more)

    def work(self) -> RankWork:
        """Return the work of one rank for one micro-batch."""
        source: StepSource = _source(self.model, self.sequence, self.device, self.spec, self.recompute)
        if self.is_compiled:
            source = CompiledSource(source, self.sheet, self.float8, self.has_loss)
        source = SustainedSource(source, self.sheet, "bf16-fsdp", _ATTENTION, self.power_limit_w)
        return source.work(self.batch // (self.degrees.pp), self.degrees, self.plan.model_parallel)

    def _parts(self) -> dict[str, float]:
        work, plan, found = self.work(), self.plan, dict.fromkeys(PARTS, 0.0)
        lowered = lower_work(work, plan, self.links)
        graph = (
            merge_ops(lowered.graph) if self.degrees.pp == 1 else lower_work(work, plan, self.links, merge=True).graph
        )
        step_s = replay(merge_ops(graph), self.links).step_s
        found |= max(
            (_spent(lowered, place) for place in range(len(lowered.graph.ranks))), key=lambda one: sum(one.values())
        )
        found[EXPOSED] = step_s - sum(found.values())
        stages = held_stages(work, plan, lowered.stages, is_gpu=True)
        parts = parts_of_stages(plan, stages)
        reserved = fsdp_reserved(stages, plan, parts, work.exchanges, "expandable")
        heaviest = max(parts, key=lambda one: one.peak_bytes)
        tensors = heaviest.peak_bytes - heaviest.context - heaviest.communicators
        sizes = {"bytes": float(max(reserved)), "bytes of tensors": float(tensors)}
        return {**found, **sizes, "low": work.low, "high": work.high}


def _spent(lowered: Lowered, place: int) -> dict[str, float]:
    found = dict.fromkeys(PARTS, 0.0)
    for op in lowered.graph.ranks[place].ops:
        part = UPDATE if op.phase == "update" else COPIES if op.name.startswith("copies") else None
        found[part or _KINDS.get(op.kind, MEMORY)] += op.duration_s + op.gap_s
        found[CASTS] += op.delay_s
    return found


@cache
def _source(
    model: LanguageModel, sequence: int, device: str, spec: tuple[tuple[str, float], ...], recompute: str
) -> PredictedSource:
    sheet = devices.get(device).with_spec(**dict(spec))
    settings = {"precision": "bf16-fsdp", "recompute": recompute, "optimizer": "adamw-fused", "attention": _ATTENTION}
    key = model, sequence, recompute
    made = source_of(model, sequence, sheet, like=_FIRST.get(key), **settings)
    _FIRST.setdefault(key, made)
    return made


_FIRST = dict[tuple[LanguageModel, int, str], PredictedSource]()
"""Network, tokens and what is recomputed -> a source on some device, whose exports others use."""
