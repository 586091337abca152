"""The same training step at other batches: sizes of its calls follow from two readings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

from cdmpp.network.eager.divided import CallExchange
from cdmpp.network.eager.read import EagerNetwork
from cdmpp.network.graph import Call
from cdmpp.network.training_phases import live_bytes, saved_bytes
from cdmpp.network.training_step import StepCall, StepMemory, TrainingStep
from cdmpp.operators.operator import EagerOperator

_Made = TypeVar("_Made", Call, StepCall)
_BYTES = (
    "output_bytes",
    "saved_bytes",
    "own_saved_bytes",
    "result_bytes",
    "gradient_bytes",
    "workspace_bytes",
)
"""Fields of a call that may depend on the batch."""


@dataclass(frozen=True)
class SizedStep:
    """These are the calls of a training step at one batch."""

    batch: int
    operators: tuple[EagerOperator, ...]
    """One a call."""
    calls: tuple[StepCall, ...]
    """Calls with the bytes that they write. Their task ids are those of the reading that they come from."""
    remember: Callable[[], StepMemory]
    """It counts what the step holds, which takes longer than all else."""
    exchanges: tuple[CallExchange, ...]
    """Exchanges of ranks that divide operators."""
    step: TrainingStep
    """The step, at a batch that was read: phases, parameters and buffers are those of every batch."""

    @cached_property
    def memory(self) -> StepMemory:
        """The step holds this."""
        return self.remember()


def sized(read: EagerNetwork) -> SizedStep:
    """Return the calls of a step at the batch at which it was read."""
    step = _step(read)
    operators = tuple(read.operators[call.task_id] for call in read.graph.calls)
    return SizedStep(read.batch, operators, step.calls, lambda: step.memory, read.exchanges, step)


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
        return _at_batch(self.low, self.high, batch) if batch > 1 and self.say_others else None


def _at_batch(low: EagerNetwork, high: EagerNetwork, batch: int) -> SizedStep | None:
    step, other = _step(low), _step(high)
    more = batch - low.batch
    made: dict[tuple[str, str, float, float], EagerOperator | None] = {}
    operators: list[EagerOperator] = []
    calls: list[Call] = []
    grow = partial(_affine, first=low.batch, more=more)
    for place, (one, two) in enumerate(zip(low.graph.calls, high.graph.calls, strict=True)):
        key = (one.task_id, two.task_id, low.elements.get(place, 0), high.elements.get(place, 0))
        if key not in made:
            pair = low.operators[one.task_id], high.operators[two.task_id]
            made[key] = _operator(*pair, key[2:], low.batch, batch)
        sizes = [(getattr(one, name), getattr(two, name)) for name in _BYTES]
        grown = [None if size is None or larger is None else grow(size, larger) for size, larger in sizes]
        operator = made[key]
        if operator is None or any(a is None and b[0] is not None for a, b in zip(grown, sizes, strict=True)):
            return None
        operators.append(operator)
        found: dict[str, Any] = dict(zip(_BYTES, grown, strict=True))
        calls.append(_changed(one, **found))
    given = grow(step.memory.input_bytes, other.memory.input_bytes)
    sent = [grow(one.bytes, two.bytes) for one, two in zip(low.exchanges, high.exchanges, strict=True)]
    if given is None or None in sent:
        return None

    def memory() -> StepMemory:
        graph, phases = replace(step.graph, calls=tuple(calls)), [call.phase for call in step.calls]
        recomputed = {place for place, call in enumerate(step.calls) if call.is_recomputed}
        return replace(
            step.memory,
            input_bytes=given,
            saved_activation_bytes=saved_bytes(graph, phases),
            live_bytes=live_bytes(graph, phases, graph.results, recomputed),
        )

    exchanges = tuple(replace(one, bytes=size) for one, size in zip(low.exchanges, sent, strict=True) if size)
    stepped = tuple(_changed(told, call=call) for told, call in zip(step.calls, calls, strict=True))
    return SizedStep(batch, tuple(operators), stepped, memory, exchanges, step)


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
            [(told.phase, told.is_recomputed, _without_sizes(told.call)) for told in step.calls],
            (step.parameters, step.frozen, step.buffers, step.optimizer, read.stand_ins),
            replace(step.memory, input_bytes=0, saved_activation_bytes=0, live_bytes=0),
            [replace(one, bytes=0) for one in read.exchanges],
        )

    return fixed(low) == fixed(high)


def _without_sizes(call: Call) -> Call:
    known: dict[str, Any] = {name: None if getattr(call, name) is None else 0 for name in _BYTES}
    return replace(call, task_id="", resident=tuple((number, 0) for number, _ in call.resident), **known)


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
