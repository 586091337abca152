"""Parts of a model in ``torch.utils.checkpoint``, as training scripts wrap them.

They are blocks, whole or without some operators, or the attention inside of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from cdmpp.errors import UnsupportedNetworkError

RECOMPUTE = ("none", "full", "op", "attention")
"""``full``: each block runs again in the backward pass. ``op``: but for attention and every second product, the policy
of that name of torchtitan (its list has products without a bias alone, this one those with a bias too). ``attention``:
each ``scaled_dot_product_attention`` by itself, Megatron's selective recomputation of the core attention."""
_KEPT = (
    "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_flash_attention_for_cpu"
).split()
"""Operators of ``aten`` whose results the policy always keeps."""


def checkpoint_parts(model: Any, how: str, name: str) -> None:
    """Let parts of a model run again in its backward pass; the model is changed, its names stay.

    Blocks are the outermost modules of one class that stand in a list of two or more and have parameters.

    Args:
        model: a torch module.
        how: one of ``RECOMPUTE``.
        name: of the network, for the error.

    Raises:
        UnsupportedNetworkError: it has no such blocks, or, once it runs, calls no such attention.
    """
    if how == "none":
        return
    if how == "attention":
        model.forward = partial(_with_attention_again, model.forward, name)
        return
    blocks = blocks_of(model)
    if not blocks:
        raise UnsupportedNetworkError(
            f"{name}: recompute {how} is of models with blocks, two or more modules of one class in a list "
            "(torch.nn.ModuleList or Sequential): call torch.utils.checkpoint in the model where it has others"
        )
    from torch.utils.checkpoint import checkpoint

    options: dict[str, Any] = {"use_reentrant": False, **({"context_fn": _contexts} if how == "op" else {})}
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, **options)


def _with_attention_again(forward: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Run a forward pass whose attention is checkpointed, call by call; ``forward`` is that of a whole model."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils.checkpoint import checkpoint

    class Again(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is not torch.nn.functional.scaled_dot_product_attention:
                return function(*args, **(kwargs or {}))
            self.calls += 1
            return checkpoint(function, *args, use_reentrant=False, **(kwargs or {}))

    with Again() as again:
        found = forward(*args, **kwargs)
    if not again.calls:
        raise UnsupportedNetworkError(
            f"{name}: recompute attention is of models that call torch.nn.functional.scaled_dot_product_attention, and "
            "this one does not: take attention auto or math in place of eager, or recompute full"
        )
    return found


def blocks_of(model: Any) -> list[Any]:
    """List the blocks of a model, in its order."""
    import torch

    found: list[Any] = []
    for child in model.children():
        is_list = isinstance(child, torch.nn.ModuleList | torch.nn.Sequential)
        parts = list(child.children()) if is_list else []
        if len(parts) > 1 and len({type(one) for one in parts}) == 1 and any(True for _ in child.parameters()):
            found += parts
        else:
            found += blocks_of(child)
    return found


def _contexts() -> Any:
    """The two contexts of a region, whose policy counts its products."""
    import torch
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    aten, seen = torch.ops.aten, {"products": 0}
    kept, products = [getattr(aten, name).default for name in _KEPT], (aten.mm.default, aten.addmm.default)

    def policy(_: Any, function: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if function in products:
            seen["products"] += 1
        keeps = function in kept or (function in products and seen["products"] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
