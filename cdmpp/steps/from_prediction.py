"""A step graph of one rank from a predicted training step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cdmpp.errors import UsageError
from cdmpp.network.compiled.replay import START
from cdmpp.network.training_prediction import StepPrediction
from cdmpp.network.training_step import ONE_DEVICE, StepCall, StepParameter, TrainingStep
from cdmpp.simulate.timeline import Timeline
from cdmpp.steps.module_span import ModuleSpan, Rows
from cdmpp.steps.step_graph import Gradient, Op, RankGraph, StepGraph

ROOT = "root"
"""FSDP module of all parameters that stand in no numbered block."""


def graph_of(prediction: StepPrediction) -> StepGraph:
    """Put the kernels of a predicted step in the order of the program, with the pauses of the host between them.

    Raises:
        UsageError: ``torch.compile`` runs the step.
    """
    if prediction.step.is_compiled:
        raise UsageError(f"{prediction.step.graph.name}: {ONE_DEVICE}")
    step, spans = prediction.step, prediction.prediction.timeline.spans
    names = [call.call.name for call in step.calls]
    queues = [str(spans[name].task.resources[0]) for name in names]
    streams = {queue: f"compute {queue}" if len(set(queues)) > 1 else "compute" for queue in queues}
    gaps_s = _gaps_s(prediction.prediction.timeline, names, queues)
    ops = tuple(
        op_of(
            call,
            spans[call.call.name].end_s - spans[call.call.name].start_s,
            gaps_s[place],
            spans[call.call.name].task.label,
            streams[queues[place]],
            tuple(source for source in call.call.inputs if queues[source] != queues[place]),
        )
        for place, call in enumerate(step.calls)
    )
    start_s = spans[START].end_s - spans[START].start_s if START in spans else spans[names[0]].start_s
    return StepGraph((RankGraph(0, ops, gradients_of(step), modules_of(step), start_s, buffers=step.buffers),))


def op_of(
    call: StepCall, duration_s: float, gap_s: float, kind: str, stream: str = "compute", waits: tuple[int, ...] = ()
) -> Op:
    """Return a call of a step as an op that takes so long."""
    return Op(
        call.call.name, call.phase, duration_s, gap_s, kind, stream, waits, call.is_recomputed,
        output_bytes=call.call.output_bytes, inputs=call.call.inputs, saved_bytes=call.call.saved_bytes,
        result_bytes=call.call.result_bytes, forward=call.call.forward, workspace_bytes=call.call.workspace_bytes,
        own_saved_bytes=call.call.own_saved_bytes, gradient_bytes=call.call.gradient_bytes,
        held=call.call.held,
    )  # fmt: skip


def gradients_of(step: TrainingStep) -> tuple[Gradient, ...]:
    """List the gradients, in the order of the model; an unused one counts as made by the first backward call."""
    first = next((place for place, call in enumerate(step.calls) if call.phase == "backward"), 0)
    readers = _readers(step)
    return tuple(
        Gradient(
            one.name, one.gradient_bytes, max(one.ready, first), is_used=one.is_used,
            readers=tuple(readers.get(one.number, ())), apart=one.apart, meshes=one.meshes,
        )
        for one in step.parameters
    )  # fmt: skip


def _readers(step: TrainingStep) -> dict[int | None, list[int]]:
    """Number of a parameter -> places of the calls of the forward pass that read it."""
    found: dict[int | None, list[int]] = {}
    for place, call in enumerate(step.calls):
        for number, _ in call.call.resident if call.phase == "forward" else ():
            found.setdefault(number, []).append(place)
    return found


def _gaps_s(timeline: Timeline, names: Sequence[str], queues: Sequence[str]) -> list[float]:
    """Seconds after each call until its queue is free for the next one; 0 after the last one of a queue."""
    gaps_s, later = [0.0] * len(names), dict[str, int]()
    for place in reversed(range(len(queues))):
        if (after := later.get(queues[place])) is not None:
            span = timeline.spans[names[place]]
            is_only = len(set(queues)) == 1
            gaps_s[place] = timeline.spans[names[after]].start_s - span.end_s if is_only else span.task.gap_s
        later[queues[place]] = place
    return gaps_s


def modules_of(step: TrainingStep) -> tuple[ModuleSpan, ...]:
    """List FSDP modules: parameters of one block, up to the first number in a name, as in ``h.0``; then the root.

    There are none in a step without a backward pass.
    """
    if not step.counts["backward"]:
        return ()
    blocks: dict[str, list[StepParameter]] = {}
    for one in (*step.parameters, *step.frozen):
        blocks.setdefault(_block(one.name), []).append(one)
    uses, learning, end = _uses(step), _learning(step), step.counts["forward"] + step.counts["backward"] - 1
    found = []
    for name, parameters in blocks.items():
        span = {phase: _span(step, phase, parameters, uses) for phase in ("forward", "backward")}
        size = sum(one.bytes for one in parameters)
        trained = tuple(map(_reduced_rows, (one for one in parameters if one not in step.frozen)))
        read = {place for one in parameters if one.number is not None for place in uses.get(one.number, ())}
        reached = bool(trained or learning & read) or not read
        found.append(
            ModuleSpan(
                name, size, span["forward"], span["backward"] if reached else (end, end), name == ROOT,
                tuple(map(_rows, parameters)), trained, reached,
                next((one.apart for one in parameters if one.apart), ()),
            )
        )  # fmt: skip
    return tuple(sorted(found, key=lambda module: module.forward))


def _rows(one: StepParameter) -> Rows:
    return one.rows, one.bytes // max(one.rows, 1), one.columns if one.apart else 0


def _reduced_rows(one: StepParameter) -> Rows:
    """The same of its gradient, as it is reduced."""
    return one.rows, one.gradient_bytes // max(one.rows, 1), one.columns if one.apart else 0


def _learning(step: TrainingStep) -> set[int]:
    """Places of the calls of the forward pass whose results a trained parameter changes: gradients go through them."""
    trained, found = {one.number for one in step.parameters}, set[int]()
    for place, call in enumerate(step.calls):
        read = {number for number, _ in call.call.resident}
        if call.phase == "forward" and (read & trained or found & {*call.call.inputs}):
            found.add(place)
    return found


def _block(parameter: str) -> str:
    parts = parameter.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
    return ROOT if number is None else ".".join(parts[: number + 1])


def _uses(step: TrainingStep) -> dict[int, list[int]]:
    """Number of a parameter -> places of the calls that read it, or a copy of it with other axes."""
    known = {one.number for one in (*step.parameters, *step.frozen) if one.number is not None}
    copies: dict[int, set[int]] = {}
    found: dict[int, list[int]] = {}
    for place, call in enumerate(step.calls):
        read = {number for number, _ in call.call.resident}
        through = set().union(*(copies.get(source, ()) for source in call.call.inputs))
        if read <= known and all(source in copies for source in call.call.inputs):
            copies[place] = read | through
        for number in (read | through) & known:
            found.setdefault(number, []).append(place)
    return found


def _span(
    step: TrainingStep, phase: str, parameters: Iterable[StepParameter], uses: dict[int, list[int]]
) -> tuple[int, int]:
    """First and last call of a phase that use any of the parameters or make its gradient; else the whole phase."""
    own = [place for one in parameters if one.number is not None for place in uses.get(one.number, ())]
    made = [one.ready for one in parameters if one.is_used]
    phases = [place for place, call in enumerate(step.calls) if call.phase == phase]
    places = sorted(place for place in (*own, *made) if step.calls[place].phase == phase) or phases
    return places[0], places[-1]
