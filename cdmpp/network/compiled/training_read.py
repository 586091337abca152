"""A network in, its ``TrainingStep`` out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cdmpp.errors import UnsupportedNetworkError, some
from cdmpp.network.compiled.training_fallback import ratio_step
from cdmpp.network.graph import graph_with_ends
from cdmpp.network.source.torch_network import TorchNetwork
from cdmpp.network.source.trained_model import (
    batch_of,
    buffers_of,
    frozen_of,
    modes_kept,
    rows_of,
    trained_model,
    types_of,
)
from cdmpp.network.training_phases import live_bytes, phases_of, saved_bytes
from cdmpp.network.training_step import StepCall, StepMemory, StepParameter, TrainingStep
from cdmpp.network.workload import Workload
from cdmpp.platform.limits import checked
from cdmpp.programs.compiled import TVM, compiled_flag, compiled_modules, compiled_noted
from cdmpp.programs.training.joint import JointGraph, NoJointGraphError, joint_graph, unwrapped
from cdmpp.programs.training.loss import with_loss
from cdmpp.programs.training.lowering import lowered_step
from cdmpp.programs.training.optimizers import Optimizer, optimizer_of


@checked()
def read_step(workload: Workload, fallback: bool = True) -> TrainingStep:
    """Read forward pass, backward pass and update of a network as tensor programs in float32. Needs TVM.

    Args:
        workload: of mode ``training_step``.
        fallback: where forward and backward pass cannot be made one graph, whether the backward pass counts as a
            measured ratio of the forward pass, which ``warnings`` say.

    Raises:
        CdmppError: the network cannot be read, exported or lowered; operator and place in the model are named. Without
            ``fallback`` also where the backward pass cannot.
    """
    update = optimizer_of(workload.update.compiled_optimizer)
    with modes_kept(workload.network), compiled_noted() as compiled:
        network, model = trained_model(workload)
        _check_float32(network, model)
        module, arguments = with_loss(model, network.example, workload.loss, workload.target)
        size = batch_of(arguments)
        try:
            joint = joint_graph(module, arguments)
            made = step_of(joint, lowered_step(joint, update), update, network.name, size)
            step = _with_unused(made, module, joint.unused)
        except NoJointGraphError as error:
            if not fallback:
                raise NoJointGraphError(
                    f"{error}; with fallback=True the backward pass is counted by ratios"
                ) from error
            step = ratio_step(network, update, size, str(error))
    compiled |= compiled_modules(network.model)
    warnings = (*network.warnings, *compiled_flag(compiled, TVM), *step.warnings)
    return replace(step, buffers=buffers_of(model), warnings=warnings)


def _check_float32(network: TorchNetwork, model: Any) -> None:
    others = {network.precision.name, *types_of(model)} - {"fp32", "float32"}
    if others:
        raise UnsupportedNetworkError(
            f"{network.name}, {', '.join(sorted(others))}: steps of TVM's programs are made in float32 only: ask for "
            "--runtime torch, or call .float() first"
        )


def step_of(joint: JointGraph, lowered: Any, optimizer: Optimizer, name: str, batch: int) -> TrainingStep:
    """Make the training step of a joint graph and of what ``lowered_step`` made of it."""
    graph, ends = graph_with_ends(lowered, name)
    results = list(zip(joint.results, ends.results, strict=False))  # new parameters and states come after these
    kept = [place for value, places in results if value.role != "gradient" for place in places]
    made = {value.name: places for value, places in results if value.role == "gradient"}
    gradients = [place for places in made.values() for place in places]
    phases = phases_of(graph, kept, gradients)
    first = phases.index("backward") if "backward" in phases else 0  # a gradient may be there without a kernel
    ready = {key: max(places, default=first) for key, places in made.items()}
    sizes = {value.name: _size(tensor) for value, tensor in zip(joint.inputs, joint.tensors, strict=True)}
    examples = [number for value, number in zip(joint.inputs, ends.parameters, strict=False) if value.role == "input"]
    of = {
        role: sum(sizes[value.name] for value in joint.inputs if value.role == role)
        for role in ("parameter", "buffer", "constant", "input")
    }
    memory = StepMemory(
        of["parameter"], sum(sizes[key] for key in ready), optimizer.states * sum(sizes[key] for key in ready),
        of["buffer"] + of["constant"], of["input"],
        saved_bytes(graph, phases, examples), live_bytes(graph, phases, gradients),
    )  # fmt: skip
    kept_bytes = memory.parameter_bytes + memory.state_bytes + memory.buffer_bytes
    graph = replace(graph, weight_bytes=kept_bytes, input_bytes=memory.input_bytes)
    numbers = {
        value.name: number
        for value, number in zip(joint.inputs, ends.parameters, strict=False)
        if value.role == "parameter"
    }
    rows = {value.name: rows_of(tensor) for value, tensor in zip(joint.inputs, joint.tensors, strict=True)}
    parameters = tuple(
        StepParameter(key, sizes[key], place, numbers.get(key), rows[key]) for key, place in ready.items()
    )
    frozen = tuple(
        StepParameter(key, sizes[key], 0, number, rows[key], is_used=False)
        for key, number in numbers.items()
        if key not in ready
    )
    calls = tuple(map(StepCall, graph.calls, phases))
    return TrainingStep(
        graph, calls, parameters, batch, optimizer.name, memory, warnings=_warnings(joint), frozen=frozen
    )


def _with_unused(step: TrainingStep, module: Any, unused: Sequence[str]) -> TrainingStep:
    """The step with the parameters of a module that have no gradient, all of them in its order."""
    names, first = unwrapped(module), next((i for i, call in enumerate(step.calls) if call.phase == "backward"), 0)
    place = {names(name): number for number, (name, _) in enumerate(module.named_parameters())}
    more = [
        StepParameter(names(name), _size(one), first, None, rows_of(one), is_used=False)
        for name, one in module.named_parameters()
        if name in unused
    ]
    found = sorted((*step.parameters, *more), key=lambda one: place.get(one.name, len(place)))
    numbers = {one.name: one.number for one in step.frozen}
    return replace(step, parameters=tuple(found), frozen=frozen_of(module, names, numbers))


def _size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _warnings(joint: JointGraph) -> tuple[str, ...]:
    found = []
    if joint.dropouts:
        found.append(f"dropout is left out in {joint.dropouts} places: random numbers are drawn by no tensor program")
    if joint.unused:
        found.append(f"the loss does not depend on {some(joint.unused, ', ', 5)}: not trained")
    return tuple(found)
