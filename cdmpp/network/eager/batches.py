"""The same training step at other batches: sizes of its calls follow from two readings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cdmpp.network.eager.divided import CallExchange
from cdmpp.network.eager.read import EagerNetwork
from cdmpp.network.graph import Call
from cdmpp.network.training_phases import live_bytes, saved_bytes
from cdmpp.network.training_step import StepMemory, TrainingStep
from cdmpp.operators.operator import EagerOperator


@dataclass(frozen=True)
class SizedStep:
    """These are the calls of a training step at one batch."""

    batch: int
    operators: tuple[EagerOperator, ...]
    """One a call."""
    calls: tuple[Call, ...]
    """Calls with the bytes that they write. Their task ids are those of the reading that they come from."""
    memory: StepMemory
    exchanges: tuple[CallExchange, ...]
    """Exchanges of ranks that divide operators."""
    step: TrainingStep
    """The step, at a batch that was read: phases, parameters and buffers are those of every batch."""


def sized(read: EagerNetwork) -> SizedStep:
    """Return the calls of a step at the batch at which it was read."""
    step = _step(read)
    operators = tuple(read.operators[call.task_id] for call in read.graph.calls)
    return SizedStep(read.batch, operators, read.graph.calls, step.memory, read.exchanges, step)


def at_batch(low: EagerNetwork, high: EagerNetwork, batch: int) -> SizedStep | None:
    """Return the step at another batch, of the kind that both readings are; None where these do not say it.

    A size of an operator does not depend on the batch, or is in proportion to it; bytes and elements in a row may also
    have a part that is constant. A step whose two readings have other calls, or sizes of another kind (a score for each
    pair of examples), has to be read at each batch.

    Args:
        low: the step at a batch of 2 or more, since one example may have other layouts.
        high: the step at one example more.
        batch: examples, from 2 up.
    """
    step, other = _step(low), _step(high)
    if batch < 2 or low.batch < 2 or high.batch != low.batch + 1 or not _is_alike(low, high):
        return None
    more = batch - low.batch
    made: dict[tuple[str, str, float, float], EagerOperator | None] = {}
    operators: list[EagerOperator] = []
    calls: list[Call] = []
    for place, (one, two) in enumerate(zip(low.graph.calls, high.graph.calls, strict=True)):
        key = (one.task_id, two.task_id, low.elements.get(place, 0), high.elements.get(place, 0))
        if key not in made:
            pair = low.operators[one.task_id], high.operators[two.task_id]
            made[key] = _operator(*pair, key[2:], low.batch, batch)
        operator, written = made[key], _affine(one.output_bytes, two.output_bytes, low.batch, more)
        saved = None if one.saved_bytes is None else _affine(one.saved_bytes, two.saved_bytes or 0, low.batch, more)
        if operator is None or written is None or (one.saved_bytes is not None and saved is None):
            return None
        operators.append(operator)
        calls.append(replace(one, output_bytes=written, saved_bytes=saved))
    given = _affine(step.memory.input_bytes, other.memory.input_bytes, low.batch, more)
    exchanges = [
        replace(one, bytes=size)
        for one, two in zip(low.exchanges, high.exchanges, strict=True)
        if (size := _affine(one.bytes, two.bytes, low.batch, more)) is not None
    ]
    if given is None or len(exchanges) < len(low.exchanges):
        return None
    graph, phases = replace(step.graph, calls=tuple(calls)), [call.phase for call in step.calls]
    ready = [one.ready for one in step.parameters if one.is_used]
    recomputed = {place for place, call in enumerate(step.calls) if call.is_recomputed}
    memory = replace(
        step.memory,
        input_bytes=given,
        saved_activation_bytes=saved_bytes(graph, phases),
        live_bytes=live_bytes(graph, phases, ready, recomputed),
    )
    return SizedStep(batch, tuple(operators), graph.calls, memory, tuple(exchanges), step)


def _step(read: EagerNetwork) -> TrainingStep:
    assert read.step is not None
    return read.step


def _is_alike(low: EagerNetwork, high: EagerNetwork) -> bool:
    """True if both readings have the same calls, but for sizes."""
    step, other = _step(low), _step(high)
    fixed: Sequence[Callable[[TrainingStep], object]] = (
        lambda one: [
            (c.call.name, c.call.inputs, c.phase, c.is_recomputed, c.call.saved_bytes is None) for c in one.calls
        ],
        lambda one: [[number for number, _ in c.call.resident] for c in one.calls],
        lambda one: (one.parameters, one.frozen, one.buffers, one.optimizer),
        lambda one: replace(one.memory, input_bytes=0, saved_activation_bytes=0, live_bytes=0),
    )
    are_alike = [[replace(one, bytes=0) for one in read.exchanges] for read in (low, high)]
    return (
        low.stand_ins == high.stand_ins
        and are_alike[0] == are_alike[1]
        and all(what(step) == what(other) for what in fixed)
    )


def _operator(
    low: EagerOperator, high: EagerOperator, elements: tuple[float, float], first: int, batch: int
) -> EagerOperator | None:
    if (low.name, low.dtype, low.sizes.keys()) != (high.name, high.dtype, high.sizes.keys()):
        return None
    if elements[0] and elements[1]:
        each = elements[1] - elements[0]
        rest = elements[0] - first * each
        return None if each < 0 or rest < 0 else EagerOperator.flat(low.name, rest + batch * each, low.dtype)
    sizes = {}
    for name, size in low.sizes.items():
        each = high.sizes[name] - size
        if each and size != first * each:
            return None
        sizes[name] = batch * each if each else size
    return EagerOperator(low.name, sizes, low.dtype)


def _affine(low: int, high: int, first: int, more: int) -> int | None:
    """Bytes at ``first + more`` examples; None where a part would be negative."""
    each = high - low
    return None if each < 0 or low < first * each else low + more * each
