"""A network in, its ``TrainingStep`` out."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.graph import graph_with_ends
from cdmpp.network.source import TorchNetwork, read_torch
from cdmpp.network.training_phases import live_bytes, phases_of, saved_bytes, step_calls
from cdmpp.network.training_step import StepParameter, TrainingStep
from cdmpp.programs.training.joint import JointGraph, NoJointGraphError, joint_graph
from cdmpp.programs.training.loss import Loss, with_loss
from cdmpp.programs.training.lowering import fuse, lower_unfused, step_to_relax
from cdmpp.programs.training.optimizers import Optimizer, optimizer_of


def training_step(
    given: Any,
    example_inputs: Any = None,
    *,
    loss: Loss = "cross_entropy",
    target: Any = None,
    optimizer: str = "adamw",
    batch: int | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    fallback: bool = True,
) -> TrainingStep:
    """Forward pass, backward pass and update of a network as tensor programs in float32. Needs TVM.

    Args:
        given: a torch module or a name of one, see ``network.source.KINDS``. A module in eval mode is trained whole, one
            in training mode as it is, which keeps frozen parts in eval mode; it is left as it was.
        example_inputs: of a torch module: a tensor, a tuple of arguments, or a dict of them by name.
        loss: ``cross_entropy`` or ``mse`` of the first output, ``own``: the ``loss`` of a model that is given labels, or a
            function of output and target that returns a tensor of one number.
        target: what the output should be; random where it is left out.
        optimizer: ``sgd`` (momentum 0.9), ``adam`` or ``adamw``.
        batch: examples in one step, where ``given`` leaves that open.
        inputs: shapes of inputs by name, where ``given`` leaves them open.
        fallback: where forward and backward pass cannot be made one graph, count the backward pass as a measured ratio
            of the forward pass, and say so in ``flags``. ``False``: raise.

    Raises:
        CdmppError: what was given cannot be read, exported or lowered; operator and place in the model are named.
    """
    update = optimizer_of(optimizer)
    with _modes(given):
        network, model = _read(given, example_inputs, batch, inputs)
        module, arguments = with_loss(model, network.example, loss, target)
        first = next((value for value in arguments if getattr(value, "shape", ())), None)
        size = int(first.shape[0]) if first is not None else 1
        try:
            joint = joint_graph(module, arguments)
            return step_of(joint, update, network.name, size)
        except NoJointGraphError as error:
            if not fallback:
                raise
            from cdmpp.network.training_fallback import ratio_step

            return ratio_step(network, update, size, str(error))


def step_of(joint: JointGraph, optimizer: Optimizer, name: str, batch: int) -> TrainingStep:
    """The training step of a joint graph; ``CdmppError`` names what cannot be lowered."""
    graph, ends = graph_with_ends(fuse(lower_unfused(step_to_relax(joint, optimizer))), name)
    roles = [value.role for value in joint.results]
    sources = dict(zip(joint.results, ends.results, strict=False))  # the new parameters and states come after these
    kept = [place for value, places in sources.items() if value.role != "gradient" for place in places]
    made = [place for value, places in sources.items() if value.role == "gradient" for place in places]
    assert "loss" in roles
    phases = phases_of(graph, kept, made)
    ready = {
        value.name: max(places, default=phases.index("backward"))
        for value, places in sources.items()
        if value.role == "gradient"
    }
    sizes = {value.name: _size(tensor) for value, tensor in zip(joint.inputs, joint.tensors, strict=True)}
    by_role = {role: 0 for role in ("parameter", "buffer", "constant", "input")}
    for value in joint.inputs:
        by_role[value.role] += sizes[value.name]
    examples = [number for value, number in zip(joint.inputs, ends.parameters, strict=False) if value.role == "input"]
    return TrainingStep(
        graph,
        step_calls(graph, phases, ready),
        tuple(StepParameter(key, sizes[key], place) for key, place in ready.items()),
        batch,
        optimizer.name,
        by_role["parameter"],
        by_role["buffer"] + by_role["constant"],
        optimizer.states * sum(sizes[key] for key in ready),
        by_role["input"],
        saved_bytes(graph, phases, examples),
        live_bytes(graph, phases, made),
        _flags(joint),
    )


def _read(
    given: Any, example: Any, batch: int | None, inputs: Mapping[str, Sequence[int]] | None
) -> tuple[TorchNetwork, Any]:
    """The network, and its model in training mode."""
    modes = _training_modes(given)
    network = read_torch(given, example, batch=batch, inputs=inputs)
    if network.dtype != "float32":
        raise CdmppError(f"{network.name} is of {network.dtype}: training steps are made in float32 alone")
    model = copy.deepcopy(network.model).train()
    inner = model if type(network.model) is type(given) else getattr(model, "inner", model)
    for module, training in zip(inner.modules(), modes, strict=False):
        module.training = training
    return network, model


def _training_modes(given: Any) -> list[bool]:
    """Of each module where the whole is in training mode, so that parts of it may be frozen; else none."""
    if not getattr(given, "training", False) or not hasattr(given, "modules"):
        return []
    return [module.training for module in given.modules()]


@contextmanager
def _modes(given: Any) -> Iterator[None]:
    """Leaves the modes of a module as they were."""
    modules = list(given.modules()) if hasattr(given, "modules") else []
    before = [module.training for module in modules]
    try:
        yield
    finally:
        for module, training in zip(modules, before, strict=True):
            module.training = training


def _size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _flags(joint: JointGraph) -> tuple[str, ...]:
    told = []
    if joint.dropouts:
        told.append(f"dropout is left out in {joint.dropouts} places: random numbers are drawn by no tensor program")
    if joint.unused:
        told.append(f"the loss does not depend on {', '.join(joint.unused[:5])}: not trained")
    return tuple(told)
