"""A training step as ``torch.compile`` runs it: forward and backward graph by Inductor, and the update eagerly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cdmpp.devices import Device
from cdmpp.errors import CdmppError
from cdmpp.network.eager.optimizer_calls import update_calls
from cdmpp.network.eager.step import add_update, kept_bytes_of, module_with_loss, parameters_of, phases_of, sizes_of
from cdmpp.network.inductor.calls import CompiledCalls
from cdmpp.network.inductor.lowered import lower
from cdmpp.network.inductor.read import InductorNetwork, check_asked, warnings_of
from cdmpp.network.source.torch_network import TorchNetwork
from cdmpp.network.source.trained_model import batch_of, buffers_of, frozen_of, modes_kept
from cdmpp.network.training_step import StepCall, StepMemory, TrainingStep
from cdmpp.network.workload import Workload
from cdmpp.programs.training.joint import unwrapped


def read_inductor_step(workload: Workload, device: Device) -> InductorNetwork:
    """Read the calls of a training step whose model and loss are compiled as one graph, and whose update is not.

    AOTAutograd's partitioner decides what the forward pass saves and what the backward pass computes again.

    Raises:
        UnsupportedNetworkError: a graph break, or sizes that depend on values.
        CdmppError: as of ``cdmpp.network.eager.step.read_step``.
    """
    with modes_kept(workload.network):
        network, model, module, arguments = module_with_loss(workload, "gpu")
        check_asked(workload, network.precision)
        made = CompiledCalls(network.name, device.architecture, workload.attention, True, network.precision.tf32)
        told = lower(network.name, module, arguments, True, device, made.add)
    return _with_update(workload, replace(network, warnings=(*network.warnings, *told)), model, module, arguments, made)


def _with_update(
    workload: Workload, network: TorchNetwork, model: Any, module: Any, arguments: tuple[Any, ...], made: CompiledCalls
) -> InductorNetwork:
    names, named = unwrapped(module), dict(module.named_parameters())
    own = {id(value): name for name, value in named.items()}
    learned = {made.numbers[place]: own[id(made.arguments[place])] for place in made.ready}
    if not learned:
        raise CdmppError(
            f"the loss of {network.name} depends on no parameter that is trained: gradients are off there "
            "(torch.no_grad, detach)"
        )
    backward = len(made.calls)
    # The compiled backward pass is one node of autograd: it hands over all gradients when its last kernel is launched.
    ready = dict.fromkeys(learned, backward - 1)
    sizes = tuple(sizes_of(named[name].shape, named[name], network.precision) for name in learned.values())
    updated = update_calls(workload.update, sizes, "gpu", network.precision.scales_loss)
    elements = add_update(updated, made.calls, made.grown)
    phases, graph = phases_of(made.forward, backward, len(made.calls)), made.graph()
    kept = kept_bytes_of(module, network.precision)
    memory = StepMemory(
        sum(kept.values()), sum(kept[id(named[name])] for name in learned.values()), updated.state_bytes,
        sum(one.nbytes for one in module.buffers()), sum(one.nbytes for one in arguments), made.saved_bytes,
        made.live_bytes, updated.workspace_bytes,
    )  # fmt: skip
    warnings = (*network.warnings, *warnings_of(trains=True))
    read = {own[id(one)]: made.numbers[place] for place, one in enumerate(made.arguments) if id(one) in own}
    frozen = frozen_of(module, names, {names(name): number for name, number in read.items()})
    step = TrainingStep(
        graph,
        tuple(StepCall(call, phase) for call, phase in zip(graph.calls, phases, strict=True)),
        parameters_of(module, names, learned, ready, made.forward, {}, precision=network.precision),
        batch_of(arguments),
        workload.update.word,
        memory,
        buffers_of(model),
        warnings,
        is_compiled=True,
        frozen=frozen,
    )
    return InductorNetwork(
        graph=graph,
        batch=step.batch,
        precision=network.precision.name,
        warnings=warnings,
        step=step,
        operators=made.grown.operators,
        elements=elements,
        stand_ins=made.stand_ins,
        trains=True,
        kernels=tuple(made.kernels),
        no_cuda_graph=made.no_cuda_graph,
    )
