"""RepeatedSource: a network of many equal blocks from the same network with a few of them, which is quick to read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import CdmppError
from cdmpp.network.training_step import StepMemory
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.source import OpExchange, RankWork, StepSource
from cdmpp.steps.derived import derived
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import Op, RankGraph
from cdmpp.steps.strategy import Strategy

FEW = 5
"""Blocks of the network that is read. Copies are put between the third and the fourth: next to the first and the last
one, ops read what is in front of all blocks or behind them."""
_CLOSE = 1e-6
"""Relative difference of the seconds of two equal ops."""
_NUMBER = re.compile(r"\.(\d+)(?=\.|$)")


class RepeatedSource(StepSource):
    """A network of equal blocks, of which those in the middle are copies of each other.

    It is read with ``FEW`` blocks and with one more, which says what an update and the memory of each further one add.
    Times, bytes, exchanges and modules are those of the whole network.
    """

    def __init__(self, of_blocks: Callable[[int], StepSource], blocks: int) -> None:
        """Read nothing yet.

        Args:
            of_blocks: number of blocks -> source of the network with so many.
            blocks: those of the network; of ``FEW`` or fewer, all are read.
        """
        self.blocks = blocks
        self._sources = tuple(of_blocks(many) for many in ((FEW, FEW + 1) if blocks > FEW else (blocks,)))
        self._works = dict[tuple[int, ParallelDegrees, tuple[Strategy, ...]], RankWork]()

    @property
    def of(self) -> str:
        """Return what its times are those of, for a reader."""
        return self._sources[0].of

    def prepare(
        self, batches: Iterable[int], degrees: Iterable[ParallelDegrees], strategies: Sequence[Strategy] = ()
    ) -> None:
        """Prepare the sources that are read."""
        batches, degrees = tuple(batches), tuple(degrees)
        for one in self._sources:
            one.prepare(batches, degrees, strategies)

    def limits(self) -> Mapping[str, int]:
        """Return the limits of the whole network: each block allows for as many stages."""
        first, *others = (dict(one.limits()) for one in self._sources)
        for more in others:
            first["pp"] += (self.blocks - FEW) * (more["pp"] - first["pp"])
        return first

    def refusal(self, degree: str, ranks: int, strategies: Sequence[Strategy] = ()) -> str:
        """Return that of the network with few blocks, whose blocks are the same."""
        return self._sources[0].refusal(degree, ranks, strategies)

    def work(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> RankWork:
        """Return the work of one rank; ``CdmppError`` as of the source, or if the blocks in the middle differ."""
        if (key := (batch, degrees, tuple(strategies))) not in self._works:
            first, *others = (one.work(batch, degrees, strategies) for one in self._sources)
            self._works[key] = repeated(first, others[0], self.blocks - FEW) if others else first
        return self._works[key]


def repeated(few: RankWork, more: RankWork, copies: int) -> RankWork:
    """Return the work of a network with ``copies`` further blocks.

    Args:
        few: the network with ``FEW`` equal blocks, each an FSDP module.
        more: the network with one more.
        copies: blocks that are added, from 0 up.

    Raises:
        CdmppError: there are not ``FEW`` blocks, or the two in the middle run other ops.
    """
    return _Repetition(few, more, copies, *_periods(few.rank)).work()


def _periods(rank: RankGraph) -> tuple[tuple[ModuleSpan, ...], _Period, _Period]:
    """Blocks, and the periods of the two in the middle in both passes.

    A block's ops begin with the first that uses one of its parameters: those before it count to the block before.
    """
    blocks = tuple(sorted((one for one in rank.modules if not one.is_kept), key=lambda one: one.forward))
    if len(blocks) != FEW or any(one.rows != blocks[0].rows for one in blocks):
        raise CdmppError(f"{len(blocks)} blocks cannot be repeated: expected {FEW} whose parameters are alike")
    forward = _Period(*(one.forward[0] for one in blocks[2:]))
    backward = _Period(*(one.backward[0] for one in blocks[3:0:-1]))
    if not (forward.is_even and backward.is_even):
        raise CdmppError("blocks cannot be repeated: those in the middle do not run as many ops as each other")
    for period in (forward, backward):
        for place in range(period.first, period.second):
            if not _is_alike(rank.ops[place], rank.ops[place + period.length]):
                raise CdmppError(f"blocks cannot be repeated: {rank.ops[place].name!r} is another op in the next block")
    return blocks, forward, backward


def _is_alike(one: Op, two: Op) -> bool:
    sizes = ("phase", "kind", "stream", "is_recomputed", "output_bytes", "saved_bytes", "workspace_bytes")
    near = abs(one.duration_s - two.duration_s) <= _CLOSE * max(one.duration_s, two.duration_s)
    return near and len(one.inputs) == len(two.inputs) and all(getattr(one, n) == getattr(two, n) for n in sizes)


@dataclass(frozen=True)
class _Period:
    """Ops of two blocks that follow each other: those from ``first`` up, and those from ``second`` to ``end``."""

    first: int
    second: int
    end: int

    @property
    def length(self) -> int:
        return self.second - self.first

    @property
    def is_even(self) -> bool:
        return self.length > 0 and self.end - self.second == self.length


@dataclass(frozen=True)
class _Repetition:
    """Copies of a block are put between the two in the middle, in the forward and in the backward pass."""

    few: RankWork
    more: RankWork
    copies: int
    blocks: tuple[ModuleSpan, ...]
    forward: _Period
    backward: _Period

    def work(self) -> RankWork:
        few = self.few
        exchanges = [one for each in few.exchanges for one in self._exchanges(each)]
        exchanges.sort(key=lambda one: one.before[0])
        memory = None
        if few.memory is not None and self.more.memory is not None:
            sizes = [[getattr(one, each.name) for each in fields(StepMemory)] for one in (few.memory, self.more.memory)]
            memory = StepMemory(*(low + self.copies * (high - low) for low, high in zip(*sizes, strict=True)))
        return replace(few, rank=self._rank(), exchanges=tuple(exchanges), memory=memory, dispatch_s=self._dispatch_s())

    def _dispatch_s(self) -> tuple[float, ...]:
        """Seconds of the host for each op; empty: unknown."""
        if not (self.few.dispatch_s and self.more.dispatch_s):
            return ()
        few, more = (np.array(one.dispatch_s) for one in (self.few, self.more))
        places, done = list[NDArray[np.int64]](), 0
        for period in (self.forward, self.backward):
            copy = np.arange(period.second, period.end)
            places += [np.arange(done, period.first), *[copy] * (self.copies + 2)]
            done = period.end
        order = np.concatenate([*places, np.arange(done, len(few))])
        updates = [
            [place for place, op in enumerate(work.rank.ops) if op.phase == "update"] for work in (self.few, self.more)
        ]
        found = few[order]
        grown = few[updates[0]] + self.copies * (more[updates[1]] - few[updates[0]])
        found[np.isin(order, updates[0])] = np.maximum(grown, 0.0)
        return tuple(found.tolist())

    def place(self, old: int) -> int:
        """Where an op of the few blocks is among all of them."""
        past = (old >= self.forward.second) * self.forward.length + (old >= self.backward.second) * self.backward.length
        return old + self.copies * past

    def _before_last(self, old: int) -> int:
        """The same where the last blocks read it: the block before them is the last copy."""
        is_copied = self.forward.first <= old < self.forward.second
        return old + self.copies * self.forward.length if is_copied else self.place(old)

    def _moved(self, old: int, other: int, turn: int, is_backward: bool) -> int:
        """Where what an op of the second of two neighbours reads is for their copy of a turn, from 0 up.

        Args:
            old: place that the op of the second one reads, in the order of its pass.
            other: place that the same op of the first one reads.
            turn: blocks between the copy and the first one.
            is_backward: True for ops of the backward pass.
        """
        period = self.backward if is_backward else self.forward
        shift = old - other
        if shift == period.length:
            return old + (turn - 1) * period.length + is_backward * self.copies * self.forward.length
        if is_backward and shift == -self.forward.length:  # a later block of the backward pass is an earlier one
            return other + (self.copies - turn) * self.forward.length
        if shift:
            raise CdmppError("blocks cannot be repeated: those in the middle read results of other places")
        return self.place(old)

    def _copied(self, place: int, turn: int, is_backward: bool) -> Op:
        """The op of a copy of the block whose op is at ``place`` in the first of the two neighbours."""
        period = self.backward if is_backward else self.forward
        one, two = self.few.rank.ops[place], self.few.rank.ops[place + period.length]

        def places(name: str) -> tuple[int, ...]:
            pairs = zip(getattr(two, name), getattr(one, name), strict=True)
            return tuple(self._moved(*pair, turn, is_backward) for pair in pairs)

        of = two.forward
        if of is not None and one.forward is not None:
            of = self._moved(of, one.forward, turn, is_backward)
        return derived(two, inputs=places("inputs"), waits=places("waits"), held=places("held"), forward=of)

    def _rank(self) -> RankGraph:
        rank, grown = self.few.rank, self._update()
        ops = list[Op]()
        for place, op in enumerate(rank.ops):
            for period, is_backward in ((self.forward, False), (self.backward, True)):
                if place == period.first:
                    turns = range(self.copies + 2)
                    ops += [
                        self._copied(each, turn, is_backward)
                        for turn in turns
                        for each in range(period.first, period.second)
                    ]
            if any(period.first <= place < period.end for period in (self.forward, self.backward)):
                continue
            is_between = self.forward.end <= place < self.backward.first
            at = self._before_last if is_between else self.place
            placed = {name: tuple(map(at, getattr(op, name))) for name in ("inputs", "waits", "held")}
            of = None if op.forward is None else at(op.forward)
            ops.append(derived(grown.get(place, op), **placed, forward=of))
        return derived(rank, ops=tuple(ops), gradients=self._gradients(), modules=self._modules())

    def _update(self) -> dict[int, Op]:
        """Place -> op of the update, with the seconds and bytes of all blocks."""
        pairs = list[list[tuple[int, Op]]]()
        for work in (self.few, self.more):
            pairs.append([(place, op) for place, op in enumerate(work.rank.ops) if op.phase == "update"])
        if len(pairs[0]) != len(pairs[1]):
            raise CdmppError("blocks cannot be repeated: each adds ops to the update; take a fused optimizer")
        found = {}
        for (place, few), (_, more) in zip(*pairs, strict=True):
            seconds = few.duration_s + self.copies * (more.duration_s - few.duration_s)
            size = few.output_bytes + self.copies * (more.output_bytes - few.output_bytes)
            found[place] = derived(few, duration_s=max(seconds, 0.0), output_bytes=max(size, 0))
        return found

    def _shift(self, turn: int) -> tuple[int, int]:
        """How far forward and backward places of the third block move for the block that many further on."""
        past = self.copies * self.forward.length
        return turn * self.forward.length, past + (self.copies - turn) * self.backward.length

    def _modules(self) -> tuple[ModuleSpan, ...]:
        found = list[ModuleSpan]()
        for one in self.few.rank.modules:
            spans = {name: tuple(map(self.place, getattr(one, name))) for name in ("forward", "backward")}
            found.append(replace(one, name=self._renamed(one.name), **spans))  # type: ignore[arg-type]
            if one is self.blocks[2]:
                for turn in range(1, self.copies + 1):
                    ahead, behind = self._shift(turn)
                    copy: dict[str, Any] = {
                        "forward": tuple(place + ahead for place in one.forward),
                        "backward": tuple(place + behind for place in one.backward),
                    }
                    found.append(replace(one, name=self._renamed(one.name, turn), **copy))
        return tuple(sorted(found, key=lambda one: one.forward))

    def _gradients(self) -> tuple[Any, ...]:
        found, own, block = list[Any](), list[Any](), self.blocks[2].name
        for one in (*self.few.rank.gradients, None):
            if own and (one is None or not one.name.startswith(f"{block}.")):
                for turn in range(1, self.copies + 1):
                    ahead, behind = self._shift(turn)
                    for each in own:
                        readers = tuple(place + ahead for place in each.readers)
                        name, ready = self._renamed(each.name, turn), each.ready_after + behind
                        found.append(replace(each, name=name, ready_after=ready, readers=readers))
                own = []
            if one is None:
                break
            if one.name.startswith(f"{block}."):
                own.append(one)
            readers = tuple(map(self.place, one.readers))
            name, ready = self._renamed(one.name), self.place(one.ready_after)
            found.append(replace(one, name=name, ready_after=ready, readers=readers))
        return tuple(found)

    def _renamed(self, name: str, turn: int = 0) -> str:
        """The name of a module or parameter of a block: those after the third have a higher number than before."""
        match = _NUMBER.search(name)
        if match is None or not any(name == one.name or name.startswith(f"{one.name}.") for one in self.blocks):
            return name
        number = int(match[1])
        first = _first_number(self.blocks[2].name)
        number += turn if turn else self.copies * (number > first)
        return f"{name[: match.start(1)]}{number}{name[match.end(1) :]}"

    def _exchanges(self, one: OpExchange) -> list[OpExchange]:
        """An exchange of divided operators at its new place, and its copies."""
        found = list[OpExchange]()
        for period, is_backward in ((self.forward, False), (self.backward, True)):
            if not period.first <= one.before[0] < period.end:
                continue
            if one.before[0] >= period.second:  # it is a copy of the same one of the block before
                return []
            start = is_backward * self.copies * self.forward.length
            for turn in range(self.copies + 2):
                by = start + turn * period.length
                after = one.after if one.after < 0 else one.after + by
                found.append(replace(one, after=after, before=tuple(place + by for place in one.before)))
            return found
        after = one.after if one.after < 0 else self.place(one.after)
        return [replace(one, after=after, before=tuple(map(self.place, one.before)))]


def _first_number(name: str) -> int:
    numbers = _NUMBER.findall(name)
    if not numbers:
        raise CdmppError(f"block {name!r} has no number, and cannot be repeated")
    return int(numbers[0])
