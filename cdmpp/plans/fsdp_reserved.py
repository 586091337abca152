"""FSDP's reserved memory: bytes that PyTorch's allocator takes from a GPU for a rank under FSDP2, stream by stream.

Each stream has blocks of its own: what is gathered (``foreach_all_gather``) and the scattered gradients
(``foreach_reduce``) lie apart from all else, and lack there even when they are free. Gaps between tensors count as they
come. Source: ``torch/distributed/fsdp/_fully_shard`` of torch 2.13, and ``_composable/fsdp`` before 2.6.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from cdmpp.errors import CdmppError
from cdmpp.plans.caching_allocator import CachingAllocator
from cdmpp.plans.expandable_segment import ExpandableSegment
from cdmpp.plans.fsdp_moments import FsdpMoment, FsdpMoments
from cdmpp.plans.memory import MemoryParts
from cdmpp.plans.placement import micro_batches_of, pipeline_of
from cdmpp.plans.plan import Plan
from cdmpp.plans.rank_memory import HeldStage
from cdmpp.plans.sources.source import OpExchange
from cdmpp.plans.strategies.tensor import Tensor
from cdmpp.platform.limits import check_choice
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.schedule import BACKWARD, FORWARD, WEIGHTS, Action

ALLOCATORS = {"native": CachingAllocator, "expandable": ExpandableSegment}
"""Name -> the allocator of a stream: PyTorch's own by default, or with ``expandable_segments:True`` as torchtitan."""
_STEPS = 2
"""States of Adam come with the first update, into gaps that passes left."""
_COPIED = ("all_gather", "reduce_scatter")


class _Stream(Protocol):
    @property
    def reserved_bytes(self) -> int: ...
    def take(self, n_bytes: int) -> Any: ...
    def free(self, block: Any) -> None: ...


def fsdp_reserved(
    stages: Sequence[HeldStage], plan: Plan, parts: Sequence[MemoryParts], exchanges: Sequence[OpExchange] = (),
    allocator: str = "expandable",
) -> list[int]:  # fmt: skip
    """Return the bytes that the allocator reserves for a rank of each place in the pipeline.

    Backward passes that a schedule divides are taken as one, at their first part.

    Args:
        stages: the memory of the stages.
        plan: of FSDP2, with all settings.
        parts: what each rank holds.
        exchanges: of divided operators. Those of asynchronous tensor parallelism have symmetric memory, which is
            outside the allocator.
        allocator: a name of ``ALLOCATORS``.

    ``CdmppError``: another strategy than FSDP2 over several ranks, or offloading.
    """
    check_choice("allocator", allocator, tuple(ALLOCATORS))
    sizes = {name: getattr(plan.degrees, name) for name in plan.replicating}
    if plan.strategy.name != "fsdp" or plan.strategy.shards(sizes) == 1:
        given = f"{plan.strategy.name}{' over one' if plan.strategy.name == 'fsdp' else ''}"
        raise CdmppError(
            f"the allocator is followed under fsdp over several ranks, given {given}: leave it out, or take that"
        )
    if plan.offload:
        raise CdmppError(f"the allocator is not followed with {', '.join(plan.offload)} on the host: leave one out")
    is_async = any(isinstance(one, Tensor) and one.async_tp for one in plan.model_parallel)
    copied = [one for one in exchanges if one.kind in _COPIED and one.degree == "tp" and not is_async]
    pipeline, found, known = pipeline_of(plan), list[int](), dict[int, FsdpMoments]()
    own: tuple[int, ...]
    for place, held in enumerate(parts):
        if pipeline is None or plan.degrees.pp == 1:
            own, actions = (0,), tuple(Action(0, kind, 0) for kind in (FORWARD, BACKWARD))
        else:
            own = pipeline.order.stages_of(place, plan.degrees.pp)
            actions = tuple(pipeline.order.actions(place, plan.degrees.pp, pipeline.micro_batches))
        for number in own:
            if number not in known:
                known[number] = _moments(stages[number], copied)
        ranks = _Rank(plan, {number: stages[number] for number in own}, known, ALLOCATORS[allocator])
        found.append(ranks.reserved(held, actions, len(stages) - 1))
    return found


def _moments(held: HeldStage, exchanges: Sequence[OpExchange]) -> FsdpMoments:
    at = {place: number for number, place in enumerate(held.places)}
    own = [
        replace(one, after=at[one.after], before=(at[one.before[0]],))
        for one in exchanges
        if one.after in at and one.before[0] in at
    ]
    return FsdpMoments.of(held.memory.rank, held.plan.recompute, own)


@dataclass
class _Rank:
    """It runs the passes of a rank on three streams."""

    plan: Plan
    stages: Mapping[int, HeldStage]
    moments: Mapping[int, FsdpMoments]
    allocator: Any

    def __post_init__(self) -> None:
        sizes = {name: getattr(self.plan.degrees, name) for name in self.plan.replicating}
        self.shards = self.plan.strategy.shards(sizes)
        self.main: _Stream = self.allocator()
        self.copies: _Stream = self.allocator()
        self.scattered: _Stream = self.allocator()
        self.is_piped = self.plan.degrees.pp > 1
        self.keeps = self.is_piped or not getattr(self.plan.strategy, "reshard_after_forward", True)
        self.gathered = dict[tuple[int, str], list[Any]]()
        self.live, self.made = dict[tuple[int, int, Any], Any](), dict[tuple[int, str, int], Any]()
        self.sums = list[Any]()
        self.arrived: Any = None
        self.leaving: Any = None

    def reserved(self, held: MemoryParts, actions: Sequence[Action], last: int) -> int:
        """Return the bytes of all streams after some steps; ``last``: number of the last stage of the pipeline."""
        many, pipeline = micro_batches_of(self.plan), pipeline_of(self.plan)
        modules = [one for each in self.stages.values() for one in each.memory.rank.modules]
        whole = sum(one.bytes for one in modules) or 1
        shares = [size * rows / whole for one in modules for rows, size, _ in one.rows]
        for share in shares:
            self.main.take(int(held.parameters * share))
        for one in self.stages.values() if self.is_piped else ():
            for _ in range(many):
                self.main.take(one.received)
            self.main.take(one.returned)
        kept = 0
        if self.is_piped and pipeline is not None and last in self.stages and pipeline.kept(last, last + 1, many):
            kept = int(self.stages[last].memory.live(self.plan.recompute).outputs)
        for step in range(_STEPS):
            self.step(actions, last, kept)
            for share in shares * 2 if step == 0 else ():
                self.main.take(int(held.optimizer * share / 2))
        return self.main.reserved_bytes + self.copies.reserved_bytes + self.scattered.reserved_bytes

    def step(self, actions: Sequence[Action], last: int, kept: int) -> None:
        """Run one step; ``kept``: bytes of outputs that the last stage keeps of each micro-batch and then joins."""
        left, outputs = defaultdict[int, int](int), list[Any]()
        for one in actions:
            left[one.stage] += one.kind != FORWARD
        for one in actions:
            held, is_forward = self.stages[one.stage], one.kind == FORWARD
            root = [each for each in held.memory.rank.modules if each.is_kept]
            for module in root if is_forward else ():
                self.gather(one.stage, module, is_forward)
            passes = self.moments[one.stage]
            moments = {FORWARD: passes.forward, WEIGHTS: ()}.get(one.kind, passes.backward)
            for moment in moments:
                self.run(moment, one.stage, one.micro_batch, is_forward)
            if is_forward and kept and one.stage == last:
                outputs.append(self.main.take(kept))
            left[one.stage] -= not is_forward
            if not is_forward and not left[one.stage]:
                blocks = [each for each in held.memory.rank.modules if not each.is_kept] if self.is_piped else []
                for module in (*blocks, *root):
                    self.scatter(one.stage, module)
        for block in [*outputs, *([self.main.take(kept * len(outputs))] if outputs else [])]:
            self.main.free(block)
        self.end()

    def run(self, moment: FsdpMoment, stage: int, batch: int, is_forward: bool) -> None:
        """Run one op."""
        for module in moment.begins:
            self.gather(stage, module, is_forward)
        for tensor, size in moment.taken:
            self.live[stage, batch, tensor] = self.main.take(size)
        for owner, place, size in moment.gradients:
            self.made_gradient((stage, owner, place), size)
        for tensor in moment.freed:
            self.main.free(self.live.pop((stage, batch, tensor)))
        for module in moment.ends if not self.is_piped else ():
            if not is_forward:
                self.scatter(stage, module)
            elif not self.keeps:
                self.reshard(stage, module)

    def made_gradient(self, key: tuple[int, str, int], size: int) -> None:
        """Take a gradient; where several batches add up, it is cast to the wide type of the sum, or added to that."""
        if self.is_piped and key in self.made:
            self.main.free(self.main.take(size))
        else:
            self.made[key] = self.main.take(size * self._wider(key[0]) if self.is_piped else size)

    def _wider(self, stage: int) -> int:
        modules = self.stages[stage].memory.rank.modules
        narrow = sum(one.padded_bytes(self.shards) for one in modules)
        return max(1, round(sum(one.scattered_bytes(self.shards) for one in modules) / (narrow or 1)))

    def gather(self, stage: int, module: ModuleSpan, is_forward: bool) -> None:
        """Gather a module into a buffer, and copy it out of that; forward the buffer stays until the next copy."""
        if (stage, module.name) in self.gathered:
            return
        buffer = self.copies.take(module.padded_bytes(self.shards))
        self.let_go()
        rows = module.rows or ((1, module.bytes, 0),)
        self.gathered[stage, module.name] = [self.main.take(many * size) for many, size, _ in rows]
        if is_forward:
            self.arrived = buffer
        else:
            self.copies.free(buffer)

    def let_go(self) -> None:
        """Let the buffer of the module before go."""
        if self.arrived is not None:
            self.copies.free(self.arrived)
            self.arrived = None

    def reshard(self, stage: int, module: ModuleSpan) -> None:
        """Let a gathered module go."""
        for block in self.gathered.pop((stage, module.name), ()):
            self.main.free(block)

    def scatter(self, stage: int, module: ModuleSpan) -> None:
        """Copy the gradients of a module into one buffer, which stays until the next one, and scatter that."""
        if self.leaving is not None:
            self.main.free(self.leaving)
        size = module.scattered_bytes(self.shards)
        self.leaving = self.main.take(size)
        owner = "" if module.is_kept else module.name
        for key in [one for one in self.made if one[:2] == (stage, owner)]:
            self.main.free(self.made.pop(key))
        self.sums.append(self.scattered.take(-(-size // self.shards)))
        self.reshard(stage, module)

    def end(self) -> None:
        """Let all go that no later step reads: the next one begins with ``zero_grad``."""
        self.let_go()
        for block in [*self.live.values(), *self.made.values(), *[self.leaving] * (self.leaving is not None)]:
            self.main.free(block)
        for block in self.sums:
            self.scattered.free(block)
        self.live.clear()
        self.made.clear()
        self.sums.clear()
        self.leaving = None
