"""A training step as PyTorch's own kernels run it: forward pass, backward pass, update. Needs no TVM."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.eager.backward import with_backward
from cdmpp.network.eager.divided import CallExchange, DividedExport, placed
from cdmpp.network.eager.eager_network import EagerNetwork
from cdmpp.network.eager.graph import GrownTasks, eager_graph_of
from cdmpp.network.eager.optimizer_calls import UpdateCalls, update_calls
from cdmpp.network.eager.rebatched import rebatched
from cdmpp.network.eager.repeated import UnlikeBlocksError, WholeStep, as_read, repeated
from cdmpp.network.graph import Call
from cdmpp.network.precision import PRECISIONS, Precision
from cdmpp.network.source.blocks import FEW, Blocks, blocks_in
from cdmpp.network.source.in_type import floats_in
from cdmpp.network.source.torch_network import TorchNetwork
from cdmpp.network.source.trained_model import batch_of, buffers_of, columns_of, frozen_of, modes_kept, trained_model
from cdmpp.network.training_phases import live_bytes, saved_bytes
from cdmpp.network.training_step import PHASES, StepCall, StepMemory, StepParameter, TrainingStep
from cdmpp.network.update import NONE, Update
from cdmpp.network.workload import Workload
from cdmpp.platform.torch_state import usual_torch
from cdmpp.programs.autocast import under_autocast
from cdmpp.programs.compiled import EAGER, compiled_flag, compiled_modules, compiled_noted
from cdmpp.programs.exported import export
from cdmpp.programs.regions import flags_of
from cdmpp.programs.training.joint import unwrapped
from cdmpp.programs.training.loss import with_loss


@dataclass(frozen=True, eq=False)
class ExportedStep:
    """This is the forward pass and the loss of a training step as a graph of PyTorch's operators."""

    network: TorchNetwork
    model: Any
    """The model in training mode."""
    module: Any
    """The model with its loss."""
    batch: int
    exported: Any
    """``torch.export.ExportedProgram`` of the module, or what stands for it."""
    update: Update
    warnings: tuple[str, ...]
    attention: str = "auto"
    """The kernel that attention runs by, one of ``attention_rules.ASKED``."""
    blocks: Blocks | None = None
    """Blocks of which the graph has a few; None: it has the whole model."""

    @usual_torch()
    def read(self, place: str = "gpu", divided: DividedExport | None = None) -> EagerNetwork:
        """Read the calls of a training step; of one rank where ``divided`` says what it runs.

        Args:
            place: what runs it: ``cpu``, ``gpu``, or the architecture of a GPU, such as ``sm_80``.
            divided: made of ``exported``; None: the step is not divided.

        Raises:
            UnlikeBlocksError: the graph has few blocks, and they do not say what the others run.
            CdmppError: as ``read_step``.
        """
        return _read(self, place, divided)

    def at(self, batch: int) -> ExportedStep | None:
        """Return the step at another batch without a further export; None where that is in doubt.

        The own batch has to be ``rebatched.BATCH``.
        """
        exported = rebatched(self.exported, self.batch, batch)
        return None if exported is None else replace(self, batch=batch, exported=exported)


def read_step(workload: Workload, place: str = "gpu") -> EagerNetwork:
    """Read the calls of a training step.

    Gradients take the places of those before (``zero_grad`` as torch has it by default). On GPUs the update runs over
    all parameters at a time, on CPUs over one after the other; both are torch's defaults.

    Args:
        workload: of mode ``training_step``.
        place: what runs it: ``cpu``, ``gpu``, or the architecture of a GPU, such as ``sm_80``.

    Raises:
        CdmppError: what was given is no torch model, has an operator that nothing can answer for, or a loss that
            depends on no parameter.
    """
    return export_step(workload, place).read(place)


def read_blocks(workload: Workload, place: str = "gpu") -> tuple[ExportedStep, EagerNetwork]:
    """Read the calls of a training step by a few of its blocks, where those say the rest; else by all of them.

    Arguments and errors as of ``read_step``, which reads all, to the same end. Returns what was exported, too.
    """
    for few in FEW:
        try:
            step = export_step(workload, place, few_blocks=few)
        except CdmppError:  # perhaps as its loss reads all blocks; else the export of all says the same
            break
        with suppress(UnlikeBlocksError):
            return step, step.read(place)
    step = export_step(workload, place)
    return step, step.read(place)


def export_step(
    workload: Workload, kind: str = "gpu", exporter: Callable[..., Any] = export, few_blocks: int | None = None
) -> ExportedStep:
    """Export a training step; ``CdmppError``: what was given is no torch model, or has no graph.

    Args:
        workload: of mode ``training_step``.
        kind: of the device, ``cpu``, or any other as ``gpu``: it decides what autocast casts.
        exporter: takes the arguments of ``export``.
        few_blocks: export so many of the blocks of a model in which all are alike, one of ``FEW``; None: all.
    """
    kind = "cpu" if kind == "cpu" else "gpu"
    with modes_kept(workload.network), compiled_noted() as compiled:
        network, model = trained_model(workload, needs_values=False)
        blocks = blocks_in(model, network.example, few_blocks) if few_blocks else None
        with blocks.shortened() if blocks else nullcontext():
            module, arguments = _with_loss(workload, network, model, kind)
            assumed: dict[str, Any] = {"imbalance": workload.moe_imbalance, "boxes": workload.boxes}
            exported = exporter(module, arguments, eager=True, trains=True, kind=kind, **assumed)
    noted = compiled_flag(compiled | compiled_modules(network.model), EAGER)
    warnings = (*network.warnings, *noted, *flags_of(exported))
    batch = batch_of(arguments)
    return ExportedStep(network, model, module, batch, exported, workload.update, warnings, workload.attention, blocks)


def module_with_loss(workload: Workload, kind: str) -> tuple[TorchNetwork, Any, Any, tuple[Any, ...]]:
    """Return a network, its model in training mode, that model with its loss, and what this one is called with.

    Args:
        workload: of mode ``training_step``.
        kind: of the device, ``cpu`` or ``gpu``: autocast runs as there.

    Raises:
        CdmppError: as of ``trained_model`` and ``with_loss``.
    """
    network, model = trained_model(workload, needs_values=False)
    return network, model, *_with_loss(workload, network, model, kind)


def _with_loss(workload: Workload, network: TorchNetwork, model: Any, kind: str) -> tuple[Any, tuple[Any, ...]]:
    target, precision = workload.target, network.precision
    if precision.weights != "float32":
        target = floats_in(target, precision.weights)
    module, arguments = with_loss(model, network.example, workload.loss, target)
    if precision.weights != "float32":
        arguments = floats_in(arguments, precision.weights)
    if precision.autocast:
        module = under_autocast(module, kind, precision.autocast)
    return module, arguments


def _read(given: ExportedStep, place: str, divided: DividedExport | None) -> EagerNetwork:
    network, module, update, together = given.network, given.module, given.update, place != "cpu"
    made = eager_graph_of(divided or given.exported, network.name, place, True, given.attention, network.precision)
    if not made.parameters:
        raise CdmppError(
            f"no parameter of {network.name} requires a gradient, so there is nothing to train: set requires_grad of "
            "some, or predict the network without training (cdmpp network)"
        )
    step = as_read(divided or given.exported, made, with_backward(made, accumulates=False))
    if given.blocks is not None:
        path = next(name for name, one in module.named_modules() if one is given.blocks.parent)
        step = repeated(step, divided or given.exported, given.blocks, path)
    made, whole = step.made, step.both
    if not whole.ready:
        raise CdmppError(
            f"the loss of {network.name} depends on no parameter that is trained: gradients are off there "
            "(torch.no_grad, detach), or torch.utils.checkpoint(use_reentrant=True) has inputs that need none"
        )
    sizes = {number: size for call in made.graph.calls for number, size in call.resident if number in whole.ready}
    grown, calls, flat = GrownTasks(network.name, whole.operators.values()), list(whole.graph.calls), {**whole.elements}
    named = dict(module.named_parameters(remove_duplicate=False))
    shapes, apart, meshes = (_by_every_name(one, named) for one in (step.shapes, step.apart, step.meshes))
    updated = update_calls(
        update,
        tuple(
            sizes_of(shapes.get(name, named[name].shape), named[name], network.precision)
            for name in (made.parameters[number] for number in sizes)
        ),
        "gpu" if together else "cpu",
        network.precision.scales_loss,
    )
    ends = whole.forward, len(whole.graph.calls)
    flat |= add_update(updated, calls, grown)
    phases = phases_of(*ends, len(calls))
    graph = replace(whole.graph, calls=tuple(calls), tasks=grown.tasks)
    names = unwrapped(module)
    parameters = parameters_of(
        module, names, made.parameters, whole.ready, whole.forward, shapes, apart, network.precision,
        meshes,
    )  # fmt: skip
    all_bytes = sum(one.itemsize * math.prod(shapes.get(name, one.shape)) for name, one in module.named_parameters())
    kept_bytes, gradient_bytes = all_bytes, sum(sizes.values())
    if network.precision.sharded:
        kept = kept_bytes_of(module, network.precision, shapes)
        kept_bytes, gradient_bytes = sum(kept.values()), sum(kept[id(named[made.parameters[one]])] for one in sizes)
    memory = StepMemory(
        kept_bytes, gradient_bytes, updated.state_bytes, made.graph.weight_bytes - all_bytes,
        made.graph.input_bytes, saved_bytes(graph, phases), live_bytes(graph, phases, graph.results, whole.recomputed),
        updated.workspace_bytes,
    )  # fmt: skip
    size, warnings = given.batch, (*given.warnings, *made.warnings, *step.warnings)
    stepped = tuple(
        StepCall(call, phase, place in whole.recomputed)
        for place, (call, phase) in enumerate(zip(graph.calls, phases, strict=True))
    )
    return EagerNetwork(
        graph=graph,
        batch=size,
        precision=network.precision.name,
        warnings=warnings,
        step=TrainingStep(
            graph,
            stepped,
            parameters,
            size,
            update.word,
            memory,
            buffers_of(given.model),
            warnings,
            frozen=frozen_of(
                module, names, {names(name): number for number, name in made.frozen.items()}, shapes, apart
            ),
        ),  # fmt: skip
        operators=grown.operators,
        elements=flat,
        exchanges=(*placed(step.exchanges, made.places, stepped), *_of_update(step, update, ends[1])),
        stand_ins=made.stand_ins,
        trains=True,
    )


def _of_update(step: WholeStep, update: Update, first: int) -> Iterator[CallExchange]:
    """Yield exchanges of gradients between the passes and the update, whose first call is ``first``.

    An operator of the optimizer that reads a gradient of which each rank has a part of the sum makes DTensor sum it up,
    each time: once where one kernel updates all or momentum is all there is, else for both moments and their product,
    and once more for a norm by which gradients are clipped.
    """
    times = 0 if update.optimizer == NONE else 1 if update.optimizer == "sgd" or update.implementation == "fused" else 3
    times += bool(times and update.clip_norm is not None)
    numbers, ready = {name: number for number, name in step.made.parameters.items()}, step.both.ready
    for one in step.exchanges:
        number = numbers.get(step.placeholders.get(one.node, ""))
        if one.when.startswith("update") and number in ready:
            for _ in range(min(times, 1) if one.when == "update once" else times):
                yield CallExchange(one.kind, one.bytes, ready[number], (first,), one.name, degree=one.degree)


def _by_every_name(found: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of parameters by all names under which a module has each: an export has one of them."""
    known = {id(named[name]): value for name, value in found.items()}
    return {name: known[id(one)] for name, one in named.items() if id(one) in known}


def sizes_of(shape: Sequence[int], parameter: Any, precision: Precision) -> tuple[tuple[int, ...], str]:
    """Return what ``update_calls`` takes of a parameter of which a rank has this shape."""
    return tuple(map(int, shape)), precision.sharded_as(_dtype(parameter))


def kept_bytes_of(
    module: Any, precision: Precision, shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})
) -> dict[int, int]:
    """Return the ``id`` of each parameter of a module, with its bytes in the type in which ranks keep it.

    ``shapes``: name of a parameter -> its shape, where a rank has a part of it.
    """
    return {
        id(one): math.prod(shapes.get(name, one.shape)) * item_bytes(precision.sharded_as(_dtype(one)))
        for name, one in module.named_parameters()
    }


def item_bytes(dtype: str) -> int:
    """Return the bytes of an element of a type such as ``bfloat16``."""
    import torch

    return int(getattr(torch, dtype).itemsize)


def _dtype(parameter: Any) -> str:
    return str(parameter.dtype).removeprefix("torch.")


def add_update(updated: UpdateCalls, calls: list[Call], grown: GrownTasks) -> dict[int, float]:
    """Add the calls of an update, one after the other; return the elements of each by its place."""
    elements = dict[int, float]()
    for one in updated.operators:
        elements[len(calls)] = one.elements
        calls.append(Call(f"update#{len(calls)}", grown.task(one), (len(calls) - 1,), int(one.written_bytes)))
    return elements


def phases_of(forward: int, backward: int, update: int) -> tuple[str, ...]:
    """Return the phase of each call; the phases end before these places."""
    ends = zip(PHASES, (0, forward, backward), (forward, backward, update), strict=True)
    return tuple(phase for phase, begin, end in ends for _ in range(begin, end))


def parameters_of(
    module: Any,
    names: Callable[[str], str],
    numbers: Mapping[int, str],
    ready: Mapping[int, int],
    backward: int,
    shapes: Mapping[str, tuple[int, ...]],
    apart: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    precision: Precision = PRECISIONS["fp32"],
    meshes: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> tuple[StepParameter, ...]:
    """List the parameters of a module, in its order.

    Args:
        module: the module that is trained.
        names: makes the name that the user knows of that of the module.
        numbers: number of a parameter that calls read, as in ``Call.resident`` -> its name in the module.
        ready: number of a parameter -> place of the call that makes its gradient.
        backward: place of the first call of the backward pass.
        shapes: name of a parameter -> its shape, where a rank has a part of it.
        apart: name of a parameter -> as ``StepParameter.apart``.
        precision: it says of which type gradients are reduced.
        meshes: name of a parameter -> as ``StepParameter.meshes``.
    """
    named = dict(module.named_parameters(remove_duplicate=False))
    found = {id(named[numbers[number]]): (number, place) for number, place in ready.items()}
    return tuple(
        StepParameter(
            names(name), math.prod(shape) * one.element_size(), place, number, shape[0] if shape else 0,
            number is not None, apart.get(name, ()), columns_of(shape), meshes.get(name, ()),
            math.prod(shape) * item_bytes(precision.reduced_as(_dtype(one))) if precision.reduced else None,
        )
        for name, one in module.named_parameters()
        if one.requires_grad
        for number, place in (found.get(id(one), (None, backward)),)
        for shape in (shapes.get(name, tuple(one.shape)),)
    )  # fmt: skip
