"""Refuses what is wrapped around a model, or called by it, that an exported graph would lose without a word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.programs.refusal import place_in_model

_DISTRIBUTED = {
    "DataParallel": "give its .module; what several GPUs take is asked with --ranks",
    "DistributedDataParallel": "give its .module; what several GPUs take is asked with --ranks",
    "FullyShardedDataParallel": "give the module inside; what several GPUs take is asked with --ranks, --strategy fsdp",
    "FSDPModule": "leave fully_shard out; what several GPUs take is asked with --ranks and --strategy fsdp",
}
"""Class of a wrapper -> what to do."""


def check_wrappers(model: Any, trains: bool) -> None:
    """Refuse a module that does not run as its graph says.

    Args:
        model: a torch module.
        trains: whether a backward pass will be made of its graph; hooks of that one run nothing else.

    Raises:
        CdmppError: it names the part, what it is and what to do.
    """
    for name, module in model.named_modules():
        at = f"{name or 'the model'} ({type(module).__name__})"
        for kind in type(module).__mro__:
            if kind.__name__ in _DISTRIBUTED and kind.__module__.startswith("torch."):
                raise CdmppError(f"{at} is wrapped in {kind.__name__}, which runs more than its operators: "
                                 f"{_DISTRIBUTED[kind.__name__]}")  # fmt: skip
        _check_kind(module, at)
        if trains and (hook := _backward_hook(module)):
            raise CdmppError(
                f"{at} has {hook}: what it does in the backward pass is in no graph; remove it (its handle has "
                ".remove()) before the step is predicted"
            )
    for name, value in _tensors(model):
        _check_tensor(name, value)


def check_calls(exported: Any, *known: Any) -> None:
    """Refuse nodes that run other graphs or functions than operators, but those that are ``known``.

    Raises:
        CdmppError: it names the call, its place and what to do.
    """
    import torch

    def is_call(node: Any) -> bool:
        return isinstance(node.target, torch._ops.HigherOrderOperator) and node.target not in known

    for node in sorted(exported.graph.nodes, key=is_call, reverse=True):  # some call functions on their way
        name = getattr(node.target, "_name", getattr(node.target, "__name__", ""))
        if not is_call(node) and name not in _FUNCTIONS:
            continue
        where = f" at {place}" if (place := place_in_model(node)) else ""
        raise CdmppError(f"{_FUNCTIONS.get(name, name)}{where} {_CALLS.get(name, _UNREAD)}")


_FUNCTIONS = {"_add_batch_dim": "torch.func.vmap", "_vmap_increment_nesting": "torch.func.vmap"}
"""Function that is called instead of an operator -> what calls it."""
_UNREAD = "is no operator, and what it runs is not read: write what it does with tensors, or leave it out of the model"
_SAME = "only networks that run the same operators for every input can be predicted"
_CALLS = {
    "cond": f"is a choice between two branches by the value of a tensor. {_SAME}: keep one branch",
    "while_loop": f"is a loop that ends by the value of a tensor. {_SAME}: write it with a fixed number of rounds",
    "scan": "runs its step once for each row, which is not read: write it as a Python loop over the rows",
    "associative_scan": "runs its step in a tree, which is not read: write it as a Python loop, or with cumsum",
    "map_impl": "runs its function once for each row, which is not read: write it as a Python loop",
    "flex_attention": "is attention that torch.compile makes a kernel of, which is not read: call "
    "torch.nn.functional.scaled_dot_product_attention instead",
}


def _check_kind(module: Any, at: str) -> None:
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        raise CdmppError(
            f"{at} is a torch.jit.ScriptModule, which is not exported: give the Python module it was made of"
        )
    if ".quantized." in f"{type(module).__module__}." and type(module).__module__.startswith("torch."):
        raise CdmppError(
            f"{at} is quantised ({type(module).__module__}): its operators run on CPUs alone, and were not measured; "
            "give the module before it was quantised, or one of torch._int_mm or torch._weight_int4pack_mm"
        )


def _backward_hook(module: Any) -> str:
    for value in module.parameters(recurse=False):
        if value._backward_hooks or getattr(value, "_post_accumulate_grad_hooks", None):
            return "a hook on the gradient of a parameter"
    if module._backward_hooks or module._backward_pre_hooks:
        return "a backward hook"
    return ""


def _tensors(model: Any) -> Iterator[tuple[str, Any]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _check_tensor(name: str, value: Any) -> None:
    import torch

    if value.layout != torch.strided:
        raise CdmppError(
            f"{name} is of the layout {value.layout}: operators of sparse tensors were not measured; call .to_dense()"
        )
    if value.is_quantized:
        raise CdmppError(f"{name} is quantised: give the module before it was quantised")
    data = value.data if isinstance(value, torch.nn.Parameter) else value
    kind = type(data)
    if kind not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and hasattr(kind, "__tensor_flatten__"):
        raise CdmppError(
            f"{name} is a {kind.__module__}.{kind.__qualname__}, a tensor that runs operators of its own, which are "
            "not read: give the module with plain tensors"
        )
