"""Cut: a rank cut into stages. What each stage holds is known at once; a stage itself is made where it is asked for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import CdmppError
from cdmpp.network.training_step import StepBuffer
from cdmpp.plans.bare import bare_op
from cdmpp.plans.cut_places import CutPlaces
from cdmpp.plans.stage_modules import Span, StageModules, backward_of
from cdmpp.plans.stages import Stage
from cdmpp.steps.derived import derived
from cdmpp.steps.exchange import START
from cdmpp.steps.step_graph import Gradient, Op, RankGraph
from cdmpp.steps.transforms.edit import moved_op


def stages_of(rank: RankGraph, cuts: Sequence[int]) -> tuple[Stage, ...]:
    """Cut a rank into stages.

    Args:
        rank: forward pass, backward pass and update of one micro-batch.
        cuts: places of the ops of the forward pass with which the second and later stages begin, in rising order.

    Raises:
        CdmppError: cuts that are no such places, or an op that reads what a stage on the other side of it makes.
    """
    if not cuts:  # a trace does not tell where it could be cut, and need not
        return (Stage(rank, tuple(range(len(rank.ops)))),)
    cut = Cut(CutPlaces(rank), tuple(cuts))
    return tuple(cut.stage(number) for number in range(cut.count))


@dataclass(frozen=True)
class Cut:
    """The places of ops of the forward pass with which the second and later stages begin, in rising order.

    An op of the backward pass is on the stage of its op of the forward pass, as autograd has it: gradients of what a
    stage received are summed there before they are sent back. Everything alive across a cut is sent, also what only a
    later stage than the next one reads. Updates are on all stages, as long as their share of the parameters is large.
    The time before the first op is on all stages.

    ``CdmppError`` for cuts that are no such places, or an op that reads what a stage on the other side of it makes.
    """

    on: CutPlaces
    cuts: tuple[int, ...]

    def __post_init__(self) -> None:
        if list(self.cuts) != sorted(set(self.cuts)) or not set(self.cuts) <= set(self.on.forward[1:]):
            raise CdmppError(f"pipeline: cuts {self.cuts} are not in rising order inside the forward pass")
        self._check()

    @property
    def count(self) -> int:
        """Return the number of stages."""
        return len(self.cuts) + 1

    def at(self, place: int) -> int:
        """Return the stage of an op of the forward pass."""
        return bisect_right(self.cuts, place)

    @cached_property
    def of(self) -> NDArray[np.int64]:
        """Stage of each op; -1: an update, or a sum of gradients over stages that all hold the parameter."""
        owners = self.on.owner_places
        found = np.where(owners < 0, -1, np.searchsorted(self.cuts, owners, side="right"))
        readers, sources = self.on.columns.reads
        is_odd = self.on.is_sum[readers] & (found[readers] != found[sources])
        waiting, seen = sorted({*readers[is_odd].tolist()}), set[int]()
        while waiting:  # in order, since a sum may read another one
            place = heappop(waiting)
            if place in seen or (own := int(found[place])) < 0:
                continue
            seen.add(place)
            parts = {int(found[one]) for one in self.on.rank.ops[place].inputs} - {-1}
            is_shared = place in self.on.made and len(parts) > 1
            found[place] = new = -1 if is_shared else max(own, min(parts, default=own))
            if new != own:
                for reader in self.on.sum_readers.get(place, ()):
                    heappush(waiting, reader)
        return found

    @cached_property
    def _stages(self) -> list[int]:
        return self.of.tolist()  # quick to look up one by one

    def _check(self) -> None:
        readers, sources = self.on.columns.reads
        own, other = self.of[readers], self.of[sources]
        is_forward = self.on.columns.is_forward[sources]
        wrong = (own >= 0) & (other >= 0) & np.where(is_forward, other > own, other < own)
        if wrong.any():
            one = min(np.flatnonzero(wrong), key=lambda number: own[number])
            ops = self.on.rank.ops
            raise CdmppError(
                f"pipeline: op {ops[readers[one]].name!r} of stage {own[one]} reads what "
                f"{ops[sources[one]].name!r} of stage {other[one]} makes: cut elsewhere"
            )

    @cached_property
    def places(self) -> tuple[NDArray[np.int64], ...]:
        """Places that the ops of each stage have in the whole rank."""
        updates = np.flatnonzero(self.on.columns.is_update)
        return tuple([np.sort(np.concatenate([own, updates])) for own in self.own_places])

    @cached_property
    def own_places(self) -> tuple[NDArray[np.int64], ...]:
        """Places in the whole rank of the ops of each stage that no other one has."""
        order = np.argsort(self.of, kind="stable")
        bounds = np.searchsorted(self.of[order], np.arange(self.count + 1))
        return tuple([order[begin:end] for begin, end in pairwise(bounds.tolist())])

    @cached_property
    def local(self) -> NDArray[np.int64]:
        """Place of each op among those of its stage; -1 where it is on several."""
        found, updates = np.full(len(self.of), -1), np.cumsum(self.on.columns.is_update)
        for places in self.own_places:
            found[places] = np.arange(len(places))
        return np.where(found < 0, -1, found + updates)

    @cached_property
    def _local(self) -> list[int]:
        return self.local.tolist()

    @cached_property
    def holders(self) -> Mapping[str, tuple[int, ...]]:
        """Parameter -> the stages that hold it; one that nothing reads is with the one before it in the model."""
        found = dict[str, tuple[int, ...]]()
        before: tuple[int, ...] = (0,)
        for one in self.on.rank.gradients:
            stage = self._stages[one.ready_after] if one.is_used and one.ready_after != START else -1
            made = before if stage < 0 else (stage,)
            before = found[one.name] = tuple(sorted({*map(self.at, one.readers)})) or made
        return found

    @cached_property
    def gradients(self) -> tuple[tuple[Gradient, ...], ...]:
        """Gradients of each stage, with the places that they have in the whole rank."""
        found: tuple[list[Gradient], ...] = tuple([] for _ in range(self.count))
        for one in self.on.rank.gradients:
            for number in self.holders[one.name]:
                found[number].append(one)
        return tuple(map(tuple, found))

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """Share of all trained parameters that each stage holds."""
        total = _bytes(self.on.rank.gradients) or 1
        return tuple(_bytes(own) / total for own in self.gradients)

    def tied(self, number: int) -> tuple[str, ...]:
        """Return the names of the parameters of a stage that others hold too."""
        return tuple(one.name for one in self.gradients[number] if len(self.holders[one.name]) > 1)

    def sent_bytes(self, number: int) -> tuple[int, ...]:
        """Return the bytes of each tensor that a stage sends to the next one."""
        return self._tensors(number, is_gradient=False)

    def returned_bytes(self, number: int) -> tuple[int, ...]:
        """Return the bytes of each gradient that a stage sends to the one before."""
        return self._tensors(number - 1, is_gradient=True)

    def returned(self, number: int) -> tuple[int, ...]:
        """Return the places in a stage of the ops of its backward pass whose results earlier stages read."""
        readers, sources = self.on.columns.reads
        is_read = (self.of[sources] == number) & (self.of[readers] >= 0) & (self.of[readers] < number)
        own = sources[is_read & self.on.columns.is_backward[sources]]
        return tuple(np.unique(self.local[own]).tolist())

    def _tensors(self, number: int, is_gradient: bool) -> tuple[int, ...]:
        """Bytes of each tensor between stage ``number`` and the next, or only of those that have a gradient."""
        if not 0 <= number < len(self.cuts):
            return ()
        (sizes,), are_trained = self.on.crossing(self.cuts[number])
        pairs = zip(sizes.tolist(), are_trained, strict=True)
        return tuple(size for size, is_trained in pairs if is_trained or not is_gradient)

    def outputs(self, number: int) -> tuple[int, ...]:
        """Return the places in a stage of the ops whose results leave it.

        Of the last one that is the op that makes the model's output: the largest result from the last layer with
        parameters on, the first of equal ones. A model may enlarge what its last layer makes, as segmentation does, and
        losses make nothing larger but by a cast: transformers' take logits in float32, and the model returns its own.
        """
        found = self.on.tensors(self.cuts[number]) if number < len(self.cuts) else self.on.outputs
        return tuple(self._local[one] for one in found if self._stages[one] == number)

    def exchanging(self, number: int) -> RankGraph:
        """Return what the exchanges of the replicas of a stage depend on: its ops do nothing."""
        ops = (self.on.rank.ops[place] for place in self.places[number].tolist())
        return self._rank(number, tuple(map(bare_op, ops)))

    @cached_property
    def _made(self) -> dict[int, Stage]:
        return {}

    def stage(self, number: int) -> Stage:
        """Return a stage; it is made once."""
        if number not in self._made:
            self._made[number] = self._stage(number)
        return self._made[number]

    def _stage(self, number: int) -> Stage:
        share, new = self.shares[number], self._new(number)
        ops = (
            derived(op, duration_s=share * op.duration_s) if op.phase == "update" else op
            for op in (moved_op(self.on.rank.ops[old], new) for old in new)
        )
        return Stage(
            self._rank(number, tuple(ops)), tuple(new), share, self.sent_bytes(number), self.returned_bytes(number),
            self.returned(number), self.outputs(number), self.tied(number),
        )  # fmt: skip

    def _rank(self, number: int, ops: tuple[Op, ...]) -> RankGraph:
        """A rank of a stage has this, with these ops."""
        readers = [
            tuple([self._local[place] for place in one.readers if self._stages[place] == number])
            for one in self.gradients[number]
        ]
        gradients = (
            derived(one, ready_after=self.ready(one, number), readers=own)
            for one, own in zip(self.gradients[number], readers, strict=True)
        )
        modules = (
            derived(part, forward=forward, backward=backward, in_backward=reached)
            for part, forward, backward, reached in self.modules[number]
        )
        return derived(
            self.on.rank, ops=ops, gradients=tuple(gradients), modules=tuple(modules), buffers=self.buffers(number)
        )

    def _new(self, number: int) -> dict[int, int]:
        """Place of an op in the whole rank -> its place in the stage."""
        return {old: place for place, old in enumerate(self.places[number].tolist())}

    def ready(self, one: Gradient, number: int) -> int:
        """Return the place in a stage after which its part of a gradient is there."""
        if one.ready_after != START and self._stages[one.ready_after] == number:
            return self._local[one.ready_after]
        return max(backward_of(self.on, self._stages, self._local, one.readers, number), default=START)

    @cached_property
    def modules(self) -> tuple[list[Span], ...]:
        """Modules of each stage, in the order of the forward pass."""
        return StageModules(self.on, self.cuts, self._stages, self._local, self.holders).each()

    def buffers(self, number: int) -> tuple[StepBuffer, ...]:
        """Return buffers of the norms of a stage, in their order; the first stage has all where norms have none."""
        buffers = self.on.rank.buffers
        if not buffers:
            return ()
        norms = [self.at(place) for place in self.on.norms]
        each, rest = divmod(len(buffers), len(norms) or 1)
        if rest or not norms:
            return buffers if number == 0 else ()
        return buffers[each * norms.index(number) :][: each * norms.count(number)] if number in norms else ()


def _bytes(gradients: Sequence[Gradient]) -> int:
    return sum(one.bytes for one in gradients if one.is_used)
