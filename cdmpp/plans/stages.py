"""Stages: the parts of a model that the ranks of a pipeline run, cut out of what one rank would run by itself."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cdmpp.errors import CdmppError
from cdmpp.network.training_step import StepBuffer
from cdmpp.plans.cut_places import CutPlaces, result_bytes
from cdmpp.steps.exchange import START
from cdmpp.steps.step_graph import Gradient, ModuleSpan, RankGraph
from cdmpp.steps.transforms.edit import moved_op


@dataclass(frozen=True)
class Stage:
    """One stage runs these ops for one micro-batch, and its part of the update once a step."""

    rank: RankGraph
    """Its ops, gradients, modules and buffers."""
    places: tuple[int, ...]
    """Places that its ops have in the whole rank."""
    share: float = 1.0
    """Its share of all trained parameters, and so of the seconds of an update."""
    sent_bytes: tuple[int, ...] = ()
    """Bytes of each tensor that it sends to the next stage in the forward pass."""
    returned_bytes: tuple[int, ...] = ()
    """Bytes of each gradient that it sends to the stage before in the backward pass."""
    outputs: tuple[int, ...] = ()
    """Places among its ops of those whose results it hands on: to later stages, and the last one to the loss."""
    tied: tuple[str, ...] = ()
    """Names of parameters that other stages hold too: their gradients are summed over these stages once a step."""


def tied_groups(
    stages: Sequence[tuple[RankGraph, Sequence[str]]], parts: int
) -> list[tuple[str, tuple[int, ...], int]]:
    """List each tied parameter with the stages that hold it and the bytes of its gradient that a rank of them sums.

    Args:
        stages: ops and names of tied parameters of each stage.
        parts: into which replicas divide each gradient before it is summed over stages.
    """
    found = dict[str, tuple[tuple[int, ...], int]]()
    for number, (rank, tied) in enumerate(stages):
        for one in (one for one in rank.gradients if one.name in tied):
            before, size = found.get(one.name, ((), 0))
            found[one.name] = (*before, number), max(size, -(-one.bytes // parts))
    return [(name, numbers, size) for name, (numbers, size) in found.items()]


def stages_of(rank: RankGraph, cuts: Sequence[int]) -> tuple[Stage, ...]:
    """Cut a rank into stages.

    An op of the backward pass is on the stage of its op of the forward pass, as autograd has it: gradients of what a
    stage received are summed there before they are sent back. Everything alive across a cut is sent, also what only a
    later stage than the next one reads. Updates are on all stages, as long as their share of the parameters is large.
    The time before the first op is on all stages.

    Args:
        rank: forward pass, backward pass and update of one micro-batch.
        cuts: places of the ops of the forward pass with which the second and later stages begin, in rising order.

    Raises:
        CdmppError: cuts that are no such places, or an op that reads what a stage on the other side of it makes.
    """
    if not cuts:  # a trace does not tell where it could be cut, and need not
        return (Stage(rank, tuple(range(len(rank.ops)))),)
    return _Cut(CutPlaces(rank), tuple(cuts)).stages()


@dataclass(frozen=True)
class _Cut:
    on: CutPlaces
    cuts: tuple[int, ...]

    def stages(self) -> tuple[Stage, ...]:
        if list(self.cuts) != sorted(set(self.cuts)) or not set(self.cuts) <= set(self.on.forward[1:]):
            raise CdmppError(f"pipeline: cuts {self.cuts} are not in rising order inside the forward pass")
        return tuple(self._stage(number) for number in range(len(self.cuts) + 1))

    def at(self, place: int) -> int:
        """Stage of an op of the forward pass."""
        return bisect_right(self.cuts, place)

    @cached_property
    def of(self) -> tuple[int | None, ...]:
        """Stage of each op; None: an update, or a sum of gradients over stages that all hold the parameter."""
        ops, found = self.on.rank.ops, list[int | None]()
        made = {one.ready_after for one in self.on.rank.gradients}
        for place, owner in enumerate(self.on.owners):
            own = None if owner is None else self.at(owner)
            if place in self.on.sums and own is not None:
                parts = {stage for one in ops[place].inputs if (stage := found[one]) is not None}
                own = None if place in made and len(parts) > 1 else max(own, min(parts, default=own))
            found.append(own)
        return tuple(found)

    def _stage(self, number: int) -> Stage:
        rank = self.on.rank
        gradients = [one for one in rank.gradients if number in self.holders[one.name]]
        share = _bytes(gradients) / (_bytes(rank.gradients) or 1)
        places = [i for i, op in enumerate(rank.ops) if self.of[i] == number or op.phase == "update"]
        new = {old: place for place, old in enumerate(places)}
        for place in places:
            self._check(place, number)
        ops = (
            replace(op, duration_s=share * op.duration_s) if op.phase == "update" else op
            for op in (moved_op(rank.ops[old], new) for old in places)
        )
        made = replace(
            rank,
            ops=tuple(ops),
            gradients=tuple(
                replace(
                    one,
                    ready_after=self._ready(one, number, new),
                    readers=tuple(new[place] for place in one.readers if place in new),
                )
                for one in gradients
            ),
            modules=self._modules(number, new),
            buffers=self._buffers(number),
        )
        return Stage(
            made,
            tuple(places),
            share,
            tuple(size for size, _ in self._tensors(number)),
            tuple(size for size, has_gradient in self._tensors(number - 1) if has_gradient),
            tuple(new[one] for one in self._handed_on(number) if one in new),
            tuple(one.name for one in gradients if len(self.holders[one.name]) > 1),
        )

    @cached_property
    def holders(self) -> Mapping[str, tuple[int, ...]]:
        """Parameter -> the stages that hold it; one that nothing reads is with the one before it in the model."""
        found = dict[str, tuple[int, ...]]()
        before: tuple[int, ...] = (0,)
        for one in self.on.rank.gradients:
            stage = self.of[one.ready_after] if one.is_used and one.ready_after != START else None
            made = before if stage is None else (stage,)
            before = found[one.name] = tuple(sorted({*map(self.at, one.readers)})) or made
        return found

    def _check(self, place: int, number: int) -> None:
        op = self.on.rank.ops[place]
        for one in op.inputs if op.phase != "update" else ():
            other, is_forward = self.of[one], self.on.rank.ops[one].phase == "forward"
            if other is not None and (other > number if is_forward else other < number):
                raise CdmppError(
                    f"pipeline: op {op.name!r} of stage {number} reads what {self.on.rank.ops[one].name!r} of stage "
                    f"{other} makes: cut elsewhere"
                )

    def _handed_on(self, number: int) -> tuple[int, ...]:
        """Places of the ops whose results leave a stage; of the last one the op that makes the model's output.

        That is the largest result from the last layer with parameters on, the first of equal ones: a model may enlarge
        what its last layer makes, as segmentation does, and losses make nothing larger.
        """
        if number < len(self.cuts):
            return self.on.tensors(self.cuts[number])
        last = [place for place in self.on.forward if place >= self.on.layers[-1]] if self.on.layers else []
        ops = self.on.rank.ops
        return tuple([max(last, key=lambda place: result_bytes(ops[place]))] if last else [])

    def _tensors(self, number: int) -> list[tuple[int, bool]]:
        """Bytes of each tensor between stage ``number`` and the next, and whether it has a gradient."""
        if not 0 <= number < len(self.cuts):
            return []
        own = [
            (result_bytes(self.on.rank.ops[one]), one in self.on.trained) for one in self.on.tensors(self.cuts[number])
        ]
        return [pair for pair in own if pair[0]] or [(1, any(trained for _, trained in own))]

    def _backward(self, readers: Sequence[int], new: Mapping[int, int]) -> list[int]:
        """New places of the ops of the backward pass that belong to any of ``readers``."""
        return [
            new[place]
            for place, owner in enumerate(self.on.owners)
            if place in new and owner in readers and self.on.rank.ops[place].phase == "backward"
        ]

    def _ready(self, one: Gradient, number: int, new: Mapping[int, int]) -> int:
        if self.of[one.ready_after] == number:
            return new[one.ready_after]
        return max(self._backward(one.readers, new), default=START)

    def _modules(self, number: int, new: Mapping[int, int]) -> tuple[ModuleSpan, ...]:
        """Modules of a stage; of one that lies on several, the parameters that the stage reads."""
        rank, found = self.on.rank, list[ModuleSpan]()
        last = max((place for old, place in new.items() if rank.ops[old].phase == "backward"), default=None)
        for module in rank.modules:
            first, end = map(self.at, module.forward)
            if last is None or not first <= number <= end:
                continue
            part = module if first == end else self._part(module, number, first)
            read = [place for one in self.members[module.name] for place in one.readers if place in new]
            if part is None or (first != end and not read):
                continue
            forward = [new[place] for place in (module.forward if first == end else sorted(read))]
            begin, stop = module.backward
            backward = (
                [new[place] for place in range(begin, stop + 1) if place in new]
                if first == end
                else self._backward(read, new)
            )
            reached = module.in_backward and bool(backward)
            spans = (backward[0], backward[-1]) if reached else (last, last)
            found.append(replace(part, forward=(forward[0], forward[-1]), backward=spans, in_backward=reached))
        return tuple(sorted(found, key=lambda one: one.forward))

    @cached_property
    def members(self) -> Mapping[str, list[Gradient]]:
        """Module -> its trained parameters; those of no other one are the root's."""
        kept = {one.name: one.is_kept for one in self.on.rank.modules}
        found: dict[str, list[Gradient]] = {name: [] for name in kept}
        for one in self.on.rank.gradients:
            parts = one.name.split(".")
            inside = {".".join(parts[:count]) for count in range(1, len(parts) + 1)} & kept.keys()
            own = [name for name in inside if not kept[name]]
            for name in own or [name for name, is_kept in kept.items() if is_kept]:
                found[name].append(one)
        return found

    def _part(self, module: ModuleSpan, number: int, first: int) -> ModuleSpan | None:
        """The part of a module that stage ``number`` holds. What is not trained counts on the first of its stages."""
        members = self.members[module.name]
        own = [number in self.holders[one.name] for one in members]
        frozen = module.bytes - sum(one.bytes for one in members) if number == first else 0
        size = sum(one.bytes for one, is_own in zip(members, own, strict=True) if is_own) + frozen
        if size <= 0:
            return None
        trained = module.rows if module.trained_rows is None else module.trained_rows
        rows = tuple(row for row, is_own in zip(trained, own, strict=False) if is_own)
        if len(trained) != len(members):
            rows = ()
        return replace(module, bytes=size, rows=() if frozen else rows, trained_rows=rows or None)

    def _buffers(self, number: int) -> tuple[StepBuffer, ...]:
        """Buffers of the norms of a stage, in their order; all are on the first stage where norms have none."""
        buffers, rank = self.on.rank.buffers, self.on.rank
        norms = [self.at(place) for place in self.on.forward if rank.ops[place].kind == "norm"]
        each, rest = divmod(len(buffers), len(norms) or 1)
        if rest or not norms:
            return buffers if number == 0 else ()
        return buffers[each * norms.index(number) :][: each * norms.count(number)] if number in norms else ()


def _bytes(gradients: Sequence[Gradient]) -> int:
    return sum(one.bytes for one in gradients if one.is_used)
