"""The model of a network as a training step runs it. Needs torch, no TVM."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from cdmpp.errors import UnsupportedNetworkError
from cdmpp.network.source.in_type import in_type
from cdmpp.network.source.torch_network import TorchNetwork, read_torch
from cdmpp.network.source.weightless import is_weightless
from cdmpp.network.training_step import StepBuffer, StepParameter
from cdmpp.network.workload import Workload
from cdmpp.operators.aten_views import runs_nothing
from cdmpp.platform.torch_state import usual_torch
from cdmpp.programs.checkpointed import checkpoint_parts
from cdmpp.programs.exported import export
from cdmpp.programs.refusal import first_line
from cdmpp.programs.wrappers import check_wrappers

TRAINED_TYPES = ("float32", "bfloat16", "float16")
"""Types that parameters of a training step may have."""


def trained_model(workload: Workload, needs_values: bool = True) -> tuple[TorchNetwork, Any]:
    """Return the network, and a copy of its model in training mode; parts that are frozen in eval mode stay so.

    ``needs_values`` is that of ``read_torch``.

    Raises:
        UsageError: as of ``read_torch``.
        UnsupportedNetworkError: the network cannot be copied, has weights of a type that nobody trains, or is wrapped
            (``check_wrappers``).
    """
    from torch._guards import detect_fake_mode

    modes = _training_modes(workload.network)
    network = read_torch(workload, needs_values)
    if is_weightless(network.model):
        raise UnsupportedNetworkError(
            f"{network.name} has weights on the device meta: a step of TVM's programs needs values, random ones will do"
        )
    check_wrappers(network.model, trains=True)  # a copy has no hooks
    try:
        is_copy = detect_fake_mode(list(network.model.parameters())) is not None  # of a model without values
        model = (network.model if is_copy else copy.deepcopy(network.model)).train()
    except Exception as error:
        raise UnsupportedNetworkError(
            f"{network.name} cannot be copied, as a training step needs it: {first_line(error)}. Weights that other "
            "tensors are computed to (torch.nn.utils.weight_norm) are in the way: use torch.nn.utils.parametrizations"
        ) from error
    others = types_of(model) - {*TRAINED_TYPES}
    if others:
        raise UnsupportedNetworkError(
            f"{network.name} has parameters of {', '.join(sorted(others))}: training steps are made with those of "
            f"{', '.join(TRAINED_TYPES)}; call .float() first"
        )
    _check_runs(network)
    inner = model.inner if type(model).__name__ == "ByName" else model
    for module, training in zip(inner.modules(), modes, strict=False):
        module.training = training
    checkpoint_parts(inner, workload.recompute, network.name)
    if network.precision.weights != "float32":
        model, example = in_type(model, network.example, network.precision.weights)
        network = replace(network, example=example)
    return network, model


def types_of(model: Any) -> set[str]:
    """Return the types of a module's parameters, such as ``bfloat16``."""
    return {str(value.dtype).removeprefix("torch.") for value in model.parameters()}


def _check_runs(network: TorchNetwork) -> None:
    """``UnsupportedNetworkError`` of a network that computes nothing: a step of it would be that of its loss."""
    if any(value.requires_grad for value in network.model.parameters()):
        return
    graph = export(network.model, network.example, eager=True).graph
    if all(node.op != "call_function" or runs_nothing(node) for node in graph.nodes):
        raise UnsupportedNetworkError(f"{network.name}: this network runs no operator: there is nothing to train")


@contextmanager
def modes_kept(network: Any) -> Iterator[None]:
    """Leave the modes of a module as they were, since its owner trains on, and read it in the usual state of torch."""
    modules = list(network.modules()) if hasattr(network, "modules") else []
    before = [module.training for module in modules]
    try:
        with usual_torch():
            yield
    finally:
        for module, training in zip(modules, before, strict=True):
            module.training = training


def batch_of(arguments: Sequence[Any]) -> int:
    """Return the examples in one step: the first size of the first tensor, in a list too; 1 where there is none."""
    from torch.utils._pytree import tree_leaves

    first = next((value for value in tree_leaves(arguments) if getattr(value, "shape", ())), None)
    return int(first.shape[0]) if first is not None else 1


def buffers_of(model: Any) -> tuple[StepBuffer, ...]:
    """List the buffers of a torch module, in its order."""
    return tuple(
        StepBuffer(one.numel() * one.element_size(), str(one.dtype).removeprefix("torch.")) for one in model.buffers()
    )


def rows_of(tensor: Any) -> int:
    """Return the length of the first dimension; 0 for a number."""
    return int(tensor.shape[0]) if tensor.dim() else 0


def frozen_of(
    module: Any, names: Callable[[str], str], numbers: Mapping[str, int | None],
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    apart: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> tuple[StepParameter, ...]:  # fmt: skip
    """List the parameters that are not trained, in the order of the module.

    Args:
        module: the module that is trained.
        names: makes the name that the user knows of that of the module.
        numbers: name that the user knows -> number that calls read it by.
        shapes: name in the module -> its shape, where a rank has a part of it.
        apart: name in the module -> as ``StepParameter.apart``.
    """
    every = module.named_parameters(remove_duplicate=False)
    read = {id(one): numbers[names(name)] for name, one in every if numbers.get(names(name)) is not None}
    return tuple(
        StepParameter(
            names(name), math.prod(shape) * one.element_size(), 0, read.get(id(one)), shape[0] if shape else 0,
            is_used=False, apart=apart.get(name, ()), columns=columns_of(shape),
        )
        for name, one in module.named_parameters()
        if not one.requires_grad
        for shape in (shapes.get(name, tuple(one.shape)),)
    )  # fmt: skip


def columns_of(shape: Sequence[int]) -> int:
    """Return the length of the second dimension; 0 without one."""
    return int(shape[1]) if len(shape) > 1 else 0


def _training_modes(network: Any) -> list[bool]:
    """Return the training flag of each module if the whole is in training mode (parts may be frozen); else none."""
    if not getattr(network, "training", False) or not hasattr(network, "modules"):
        return []
    return [module.training for module in network.modules()]
