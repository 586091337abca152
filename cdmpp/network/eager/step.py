"""A training step as PyTorch's own kernels run it: forward pass, backward pass, update. Needs no TVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cdmpp import devices
from cdmpp.devices import Device
from cdmpp.errors import CdmppError
from cdmpp.network.eager.backward import GrownTasks, with_backward
from cdmpp.network.eager.graph import library_graph_of
from cdmpp.network.eager.predict import LibraryNetwork, compose, library_predictor
from cdmpp.network.graph import Call
from cdmpp.network.memory import with_memory_told
from cdmpp.network.source.trained_model import batch_of, modes_kept, trained_model
from cdmpp.network.training_phases import live_bytes, saved_bytes, step_calls
from cdmpp.network.training_prediction import StepPrediction
from cdmpp.network.training_step import PHASES, StepMemory, StepParameter, TrainingStep
from cdmpp.operators.update import STATES, update_of, workspace_elements
from cdmpp.programs.compiled import EAGER, compiled_flag, compiled_modules, compiled_noted
from cdmpp.programs.training.joint import unwrapped
from cdmpp.programs.training.loss import Loss, with_loss

_BYTES = 4
"""Of a float32."""


def predict_library_step(
    given: Any,
    example_inputs: Any = None,
    *,
    device: str | Device,
    model: str | Path | None = None,
    loss: Loss = "cross_entropy",
    target: Any = None,
    optimizer: str | None = "adamw",
    batch: int | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    progress: bool = True,  # noqa: ARG001 - as of the other runtime: this one is done before a bar would show
) -> StepPrediction:
    """Seconds of a training step on ``device`` with PyTorch's own kernels, eagerly, before it runs there.

    Gradients take the places of those before (``zero_grad`` as torch has it by default). On GPUs the update runs over
    all parameters at a time, on CPUs over one after the other; both are torch's defaults.

    Args:
        given: a torch module, or a name of one: see ``network.source.KINDS``. ``file.py:function`` runs it.
        example_inputs: of a torch module.
        device: name of a device, or one described in Python.
        model: folder or name of a model of library operators; None: the first that knows the device or its kind.
        loss: as of ``training_read.training_step``, and so ``target``.
        target: as there.
        optimizer: ``sgd`` (momentum 0.9), ``adam`` or ``adamw``; None: no update.
        batch: examples in one step, where ``given`` leaves that open.
        inputs: shapes of inputs by name, where ``given`` leaves them open.
        progress: no bar is shown: nothing is sampled or compiled.

    Raises:
        CdmppError: what was given is no torch model, has an operator that nothing can answer for, or no such device
            or model.
    """
    sheet = devices.get(device) if isinstance(device, str) else device
    predictor, name = library_predictor(sheet, model)
    step, read = library_step(
        given, example_inputs, loss=loss, target=target, optimizer=optimizer, batch=batch, inputs=inputs,
        together=sheet.kind != "cpu",
    )  # fmt: skip
    made = compose(read, predictor, name, sheet, train=True, update=True)
    return StepPrediction(step, with_memory_told(made, sheet, step.peak_bytes))


def library_step(
    given: Any,
    example_inputs: Any = None,
    *,
    loss: Loss = "cross_entropy",
    target: Any = None,
    optimizer: str | None = "adamw",
    batch: int | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    together: bool = True,
) -> tuple[TrainingStep, LibraryNetwork]:
    """The step, and its calls as what ``compose`` takes; ``together`` as of ``update_of``, the rest as above."""
    from cdmpp.programs.networks import export

    with modes_kept(given), compiled_noted() as compiled:
        network, model = trained_model(given, example_inputs, batch, inputs)
        module, arguments = with_loss(model, network.example, loss, target)
        made = library_graph_of(
            export(module, arguments, eager=True, trains=True), network.name, "gpu" if together else "cpu"
        )
    whole, update = with_backward(made, accumulates=False), optimizer or "none"
    if made.parameters and not whole.ready:
        raise CdmppError(
            f"the loss of {network.name} depends on no parameter that is trained: gradients are off there "
            "(torch.no_grad, detach), or torch.utils.checkpoint(use_reentrant=True) has inputs that need none"
        )
    sizes = {number: size for call in made.graph.calls for number, size in call.resident if number in whole.ready}
    grown = GrownTasks(network.name)
    for operator in whole.operators.values():
        grown.task(operator)
    calls = list(whole.graph.calls)
    elements = [size // _BYTES for size in sizes.values()]
    for one in update_of(update, elements, "float32", together):
        written = int(one.written_elements * one.element_bytes)
        calls.append(Call(f"update#{len(calls)}", grown.task(one), (len(calls) - 1,), written))
    ends = whole.forward, len(whole.graph.calls), len(calls)
    phases = tuple(next(p for p, end in zip(PHASES, ends, strict=True) if i < end) for i in range(len(calls)))
    graph = replace(whole.graph, calls=tuple(calls), tasks=grown.tasks)
    names = unwrapped(module)
    ready = {names(made.parameters[number]): place for number, place in whole.ready.items()}
    parameters = tuple(
        StepParameter(names(made.parameters[number]), sizes[number], place, number)
        for number, place in whole.ready.items()
    )
    examples = {number for call in made.graph.calls for number, _ in call.resident} - made.weights
    all_bytes = sum(one.numel() * one.element_size() for one in module.parameters())
    memory = StepMemory(
        all_bytes, sum(sizes.values()), STATES[update] * sum(sizes.values()), made.graph.weight_bytes - all_bytes,
        made.graph.input_bytes, saved_bytes(graph, phases, examples, copies_weights=False),
        live_bytes(graph, phases, ready.values()),
        _BYTES * workspace_elements(update, elements, together),
    )  # fmt: skip
    size, flags = batch_of(arguments), compiled_flag(compiled | compiled_modules(network.model), EAGER)
    stepped = tuple(
        replace(call, is_recomputed=place in whole.recomputed)
        for place, call in enumerate(step_calls(graph, phases, ready, examples, copies_weights=False))
    )
    step = TrainingStep(graph, stepped, parameters, size, update, memory, flags)
    return step, LibraryNetwork(graph, grown.operators, made.stand_ins, size, flags)
