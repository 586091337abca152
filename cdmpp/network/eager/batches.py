"""The same training step at other batches: sizes of its calls follow from two readings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from cdmpp.network.eager.divided import CallExchange
from cdmpp.network.eager.eager_network import EagerNetwork
from cdmpp.network.graph import Call
from cdmpp.network.liveness import CallBytes, Lifetimes
from cdmpp.network.training_phases import runs_of_passes, saved_places
from cdmpp.network.training_step import StepCall, StepMemory, TrainingStep
from cdmpp.operators.operator import EagerOperator

_Made = TypeVar("_Made", Call, StepCall)
BYTES = (
    "output_bytes",
    "saved_bytes",
    "own_saved_bytes",
    "result_bytes",
    "gradient_bytes",
    "workspace_bytes",
)
"""Fields of a call that may depend on the batch."""
_SIZES = attrgetter(*BYTES)
_FIXED = attrgetter(*(one.name for one in fields(Call) if one.name not in (*BYTES, "task_id", "resident")))


@dataclass(frozen=True)
class SizedStep:
    """These are the calls of a training step at one batch."""

    batch: int
    operators: tuple[EagerOperator, ...]
    """One a call."""
    remember: Callable[[], StepMemory]
    """It counts what the step holds, which times do not depend on."""
    exchanges: tuple[CallExchange, ...]
    """Exchanges of ranks that divide operators."""
    step: TrainingStep
    """The step, at a batch that was read: phases, parameters and buffers are those of every batch."""
    bytes_of: tuple[Mapping[str, int | None], ...] = ()
    """Fields of each call of ``step`` that have other values at this batch; empty: none has."""

    @property
    def calls(self) -> tuple[StepCall, ...]:
        """Calls with the bytes that they write; their task ids are those of the reading that they come from."""
        if not self.bytes_of:
            return self.step.calls
        each = zip(self.step.calls, self.bytes_of, strict=True)
        return tuple([_changed(one, call=_changed(one.call, **own)) for one, own in each])

    @cached_property
    def memory(self) -> StepMemory:
        """The step holds this."""
        return self.remember()


def sized(read: EagerNetwork) -> SizedStep:
    """Return the calls of a step at the batch at which it was read."""
    step = _step(read)
    operators = tuple(read.operators[call.task_id] for call in read.graph.calls)
    return SizedStep(read.batch, operators, lambda: step.memory, read.exchanges, step)


class _Pair(NamedTuple):
    """It is a call at both batches."""

    tasks: tuple[str, str]
    elements: tuple[float, float]
    sizes: tuple[tuple[int | None, int | None], ...]
    """Those of ``BYTES``."""


@dataclass(frozen=True, eq=False)
class TwoReadings:
    """These are a step at a batch of 2 or more, since one example may have other layouts, and at one example more.

    A size of an operator does not depend on the batch, or is in proportion to it; bytes and elements in a row may also
    have a part that is constant. A step whose two readings have other calls, or sizes of another kind (a score for each
    pair of examples), has to be read at each batch.
    """

    low: EagerNetwork
    high: EagerNetwork

    @cached_property
    def say_others(self) -> bool:
        """Whether they have the same calls, but for sizes."""
        return 2 <= self.low.batch == self.high.batch - 1 and _is_alike(self.low, self.high)

    def at(self, batch: int) -> SizedStep | None:
        """Return the step at ``batch`` examples, from 2 up; None where the readings do not say it."""
        return self._at(batch) if batch > 1 and self.say_others else None

    @cached_property
    def _pairs(self) -> tuple[tuple[_Pair, ...], tuple[int, ...]]:
        """Unlike pairs of a call at both batches, and the number of that of each call: equal blocks have the same."""
        found, low, high = dict[_Pair, int](), self.low, self.high
        numbers = []
        for place, (one, two) in enumerate(zip(low.graph.calls, high.graph.calls, strict=True)):
            sizes = tuple(zip(_SIZES(one), _SIZES(two), strict=True))
            elements = low.elements.get(place, 0), high.elements.get(place, 0)
            numbers.append(found.setdefault(_Pair((one.task_id, two.task_id), elements, sizes), len(found)))
        return tuple(found), tuple(numbers)

    def _at(self, batch: int) -> SizedStep | None:
        low, step, other = self.low, _step(self.low), _step(self.high)
        grow = partial(_affine, first=low.batch, more=batch - low.batch)
        pairs, numbers = self._pairs
        made, grown = list[EagerOperator](), list[dict[str, int | None]]()
        for one in pairs:
            pair = low.operators[one.tasks[0]], self.high.operators[one.tasks[1]]
            operator = _operator(*pair, one.elements, low.batch, batch)
            own = [None if size is None or larger is None else grow(size, larger) for size, larger in one.sizes]
            if operator is None or any(a is None and b[0] is not None for a, b in zip(own, one.sizes, strict=True)):
                return None
            made.append(operator)
            grown.append(dict(zip(BYTES, own, strict=True)))
        given = grow(step.memory.input_bytes, other.memory.input_bytes)
        sent = [grow(one.bytes, two.bytes) for one, two in zip(low.exchanges, self.high.exchanges, strict=True)]
        if given is None or None in sent:
            return None

        def memory() -> StepMemory:
            firsts = {number: call for call, number in zip(low.graph.calls[::-1], numbers[::-1], strict=True)}
            each = CallBytes.of([_changed(firsts[number], **own) for number, own in enumerate(grown)]).at(numbers)
            alive, _ = self._lifetimes.alive(each, step.graph.results)
            return replace(
                step.memory,
                input_bytes=given,
                saved_activation_bytes=int(each.saved[self._saved].sum()),
                live_bytes=int(alive.max(initial=0)),
            )

        exchanges = tuple(replace(one, bytes=size) for one, size in zip(low.exchanges, sent, strict=True) if size)
        operators = tuple([made[number] for number in numbers])
        return SizedStep(batch, operators, memory, exchanges, step, tuple([grown[number] for number in numbers]))

    @cached_property
    def _phases(self) -> list[str]:
        return [call.phase for call in _step(self.low).calls]

    @cached_property
    def _lifetimes(self) -> Lifetimes:
        """Results that each call reads for the last time; they are the same at all batches."""
        step = _step(self.low)
        recomputed = {place for place, call in enumerate(step.calls) if call.is_recomputed}
        return Lifetimes.of(step.graph.calls, runs_of_passes(self._phases, recomputed))

    @cached_property
    def _saved(self) -> list[int]:
        return sorted(saved_places(_step(self.low).graph, self._phases))


def _changed(one: _Made, **others: Any) -> _Made:
    """Return the same with other fields; much faster than ``replace``, for many calls."""
    made = object.__new__(type(one))
    made.__dict__.update(one.__dict__, **others)
    return made


def _step(read: EagerNetwork) -> TrainingStep:
    assert read.step is not None
    return read.step


def _is_alike(low: EagerNetwork, high: EagerNetwork) -> bool:
    """True if both readings have the same calls, but for sizes."""

    def fixed(read: EagerNetwork) -> tuple[object, ...]:
        step = _step(read)
        return (
            (step.parameters, step.frozen, step.buffers, step.optimizer, read.stand_ins),
            replace(step.memory, input_bytes=0, saved_activation_bytes=0, live_bytes=0),
            [replace(one, bytes=0) for one in read.exchanges],
        )

    pair = _step(low).calls, _step(high).calls
    same_calls = len(pair[0]) == len(pair[1]) and all(map(_is_same_call, *pair))
    return same_calls and fixed(low) == fixed(high)


def _is_same_call(one: StepCall, two: StepCall) -> bool:
    if (one.phase, one.is_recomputed) != (two.phase, two.is_recomputed) or _FIXED(one.call) != _FIXED(two.call):
        return False
    if [number for number, _ in one.call.resident] != [number for number, _ in two.call.resident]:
        return False
    return [size is None for size in _SIZES(one.call)] == [size is None for size in _SIZES(two.call)]


def _operator(
    low: EagerOperator, high: EagerOperator, elements: tuple[float, float], first: int, batch: int
) -> EagerOperator | None:
    if (low.name, low.dtype, low.reads, low.sizes.keys()) != (high.name, high.dtype, high.reads, high.sizes.keys()):
        return None
    if elements[0] and elements[1]:
        each = elements[1] - elements[0]
        rest = elements[0] - first * each
        return None if each < 0 or rest < 0 else EagerOperator.flat(low.name, rest + batch * each, low.dtype, low.reads)
    sizes = {}
    for name, size in low.sizes.items():
        each = high.sizes[name] - size
        if each and size != first * each:
            return None
        sizes[name] = batch * each if each else size
    return EagerOperator(low.name, sizes, low.dtype, reads=low.reads)


def _affine(low: int, high: int, first: int, more: int) -> int | None:
    """Bytes at ``first + more`` examples; None where a part would be negative."""
    each = high - low
    return None if each < 0 or low < first * each else low + more * each
