"""One FSDP job of a published language model: seconds by what they are spent on, as the product predicts them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache

from benchmarks.plans.language_models import LanguageModel, source_of
from cdmpp import devices
from cdmpp.collectives.topology import Topology, topology_of
from cdmpp.devices import Device
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import Lowered, lower_work
from cdmpp.plans.plan import Plan
from cdmpp.plans.rank_memory import parts_of
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.sources.source import RankWork
from cdmpp.plans.sources.sustained import ATTENTION, PRODUCTS, sustained_clock
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.platform.paths import cache_root
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import RankGraph
from cdmpp.steps.transforms.merge_ops import merge_ops

MEMORY, UPDATE, COPIES, EXPOSED, BLOCKS = "other kernels", "update", "copies and NCCL's share", "exposed", "blocks"
PARTS = (PRODUCTS, ATTENTION, MEMORY, UPDATE, COPIES, EXPOSED, BLOCKS)
"""All but ``BLOCKS`` sum up to the step; that is the number of blocks that a step runs, forward and backward."""
_KINDS = {"dense": PRODUCTS, "matmul": ATTENTION}
_VERSION = 7
_FEW = 3
"""Accumulated batches that are replayed; each further one adds as much as the last of them."""


@dataclass(frozen=True)
class FSDPJob:
    """These settings of a job decide what a step takes."""

    model: LanguageModel
    sequence: int
    device: str
    cluster: str
    ranks: int
    batch: int
    """Examples of a rank and accumulated batch."""
    batches: int = 1
    precision: str = "bf16-fsdp"
    recompute: str = "none"
    every: int = 0
    """One of so many blocks runs again in the backward pass; 0: none, beside what ``recompute`` says."""
    reshard: bool = True
    is_flat: bool = False
    """True for FSDP1, which gathers into a flat tensor of which parameters are views, and copies nothing."""
    spec: tuple[tuple[str, float], ...] = ()
    """Numbers of the device that are others than described."""
    optimizer: str = "adamw-fused"
    fuses_loss: bool = False
    """Whether the loss is FlashAttention's, see ``with_fused_loss``."""

    @property
    def sheet(self) -> Device:
        """Return the device of each rank."""
        return devices.get(self.device).with_spec(**dict(self.spec))

    def parts(self) -> dict[str, float]:
        """Return the seconds of a step by ``PARTS``, and its ``bytes`` of the rank that holds most.

        What is exposed is that at the full clock; products and attention run at the one that the board sustains.
        """
        text = json.dumps([_VERSION, asdict(self)], sort_keys=True)
        path = cache_root() / "fsdp-jobs" / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self._parts()))
        found: dict[str, float] = json.loads(path.read_text())
        slower = {name: found[name] / sustained_clock(name, self.sheet) for name in (PRODUCTS, ATTENTION)}
        return {**found, **slower}

    def _parts(self) -> dict[str, float]:
        key = self.model, self.sequence, self.device, self.spec, self.precision, self.recompute, self.optimizer
        one = _source(*key).work(self.batch, ParallelDegrees())
        rank = with_fused_loss(one.rank) if self.fuses_loss else one.rank
        copies = replace(one.copies, gathered_s=0.0, scattered_s=0.0) if one.copies and self.is_flat else one.copies
        work = replace(one, rank=rank, copies=copies)
        again = tuple(own.name for own in rank.modules if not own.is_kept)[:: self.every] if self.every else ()
        replayed = [self._replayed(work, again, many) for many in range(1, min(self.batches, _FEW) + 1)]
        more = self.batches - len(replayed)
        found = dict.fromkeys(PARTS, 0.0)
        for name in (PRODUCTS, ATTENTION, MEMORY, UPDATE, COPIES):
            each = [spent[name] for spent, _ in replayed]
            found[name] = each[-1] + more * (each[-1] - each[-2] if len(each) > 1 else 0.0)
        steps = [step_s for _, step_s in replayed]
        step_s = steps[-1] + more * (steps[-1] - steps[-2] if len(steps) > 1 else 0.0)
        found[EXPOSED] = step_s - sum(found.values())
        found[BLOCKS] = float(self.model.layers * self.batches)
        plan = self._plan(again, self.batches)
        held = parts_of(work, plan, self._lowered(work, plan), is_gpu=True)
        return {**found, "bytes": float(max(own.peak_bytes for own in held)), "low": one.low, "high": one.high}

    def _plan(self, again: tuple[str, ...], many: int) -> Plan:
        strategy = FSDP(reshard_after_forward=self.reshard, scatter_each_batch=True)
        return Plan(strategy, ParallelDegrees(dp_shard=self.ranks), many, recompute=again)

    def _lowered(self, work: RankWork, plan: Plan) -> Lowered:
        return lower_work(work, plan, _links(self.device, self.cluster, self.ranks), merge=False)

    def _replayed(self, work: RankWork, again: tuple[str, ...], many: int) -> tuple[Mapping[str, float], float]:
        """Seconds of the ops of one rank by part, and of the step."""
        lowered, spent = self._lowered(work, self._plan(again, many)), dict.fromkeys(PARTS, 0.0)
        for op in lowered.graph.ranks[0].ops:
            part = UPDATE if op.phase == "update" else COPIES if op.name.startswith("copies") else None
            spent[part or _KINDS.get(op.kind, MEMORY)] += op.duration_s + op.gap_s + op.delay_s
        return spent, replay(merge_ops(lowered.graph), _links(self.device, self.cluster, self.ranks)).step_s


@cache
def _links(device: str, cluster: str, ranks: int) -> Topology:
    return topology_of(ranks, device, cluster=cluster, can_grow=True)


@cache
def _source(
    model: LanguageModel, sequence: int, device: str, spec: tuple[tuple[str, float], ...], precision: str,
    recompute: str, optimizer: str,
) -> PredictedSource:  # fmt: skip
    sheet = devices.get(device).with_spec(**dict(spec))
    key = model, sequence, precision, recompute, optimizer
    made = source_of(
        model, sequence, sheet, like=_FIRST.get(key), precision=precision, recompute=recompute, optimizer=optimizer
    )
    _FIRST.setdefault(key, made)
    return made


_FIRST = dict[tuple[LanguageModel, int, str, str, str], PredictedSource]()
"""Network, tokens, precision, what is recomputed and optimizer -> a source on some device, whose exports others use."""


def with_fused_loss(rank: RankGraph) -> RankGraph:
    """Return what a rank runs with FlashAttention's cross-entropy in place of PyTorch's.

    It reads the scores as the last product leaves them, in 16 bits, and its backward pass reads them again and writes
    their gradient: as many bytes as the cast to float32 alone moves, whose seconds stand for both. Nothing else
    between the two products of the head takes time.

    Raises:
        ValueError: no cast follows the last product of the forward pass.
    """
    last = max(place for place, op in enumerate(rank.ops) if op.phase == "forward" and op.kind == "dense")
    first = next(place for place, op in enumerate(rank.ops) if op.phase == "backward" and op.kind == "dense")
    between = range(last + 1, first)
    casts = [place for place in between if rank.ops[place].phase == "forward" and rank.ops[place].name.startswith("to")]
    if not casts:
        raise ValueError(f"expected a cast of the scores behind {rank.ops[last].name}, got none")
    free = {*between} - {casts[0]}
    ops = (replace(op, duration_s=0.0, gap_s=0.0) if place in free else op for place, op in enumerate(rank.ops))
    return replace(rank, ops=tuple(ops))
