"""Temporaries of autograd's formulas: a backward pass of one node runs on tensors without values, and is watched."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any


def backward_bytes(mode: Any, found: Sequence[Any], given: Any, known: Collection[int]) -> int:
    """Return the most bytes alive while the gradients of one node are made; 0 where there are none.

    The gradient that autograd hands to the node, those that the node makes, and all that its formulas write on the way
    are counted, storages once; what the forward pass kept is not. Formulas are run as they are, so ``x ** 2``, whose
    formula is three kernels, holds three tensors at a time. A formula that reads values cannot run here: 0.

    Args:
        mode: ``FakeTensorMode`` under which the node ran.
        found: its results.
        given: its arguments, in any structure.
        known: numbers of the storages that were there before, as their addresses.
    """
    import torch

    leaves = [one for one in torch.utils._pytree.tree_leaves(given) if isinstance(one, torch.Tensor)]
    wanted = [*{id(one): one for one in leaves if one.requires_grad}.values()]
    results = [one for one in found if one.requires_grad]
    if not wanted or not results:
        return 0
    watch, handed_over = _watch()(known), _handed_over()
    try:
        with mode, torch.enable_grad():
            loss = handed_over.apply(*results)
            seed = torch.empty_like(loss)
            with watch:
                torch.autograd.grad(loss, wanted, seed, retain_graph=True, allow_unused=True)
    except RuntimeError:  # also that of fake tensors whose values, or whose shapes by value, a formula reads
        return 0
    return int(watch.most)


@cache
def _watch() -> Any:
    """A class of modes that sum the storages which kernels under it made and which are still there."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.weak import WeakIdKeyDictionary

    class Watch(TorchDispatchMode):
        def __init__(self, known: Collection[int]) -> None:
            super().__init__()
            self.known, self.alive, self.most = known, WeakIdKeyDictionary(), 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            import torch

            made = func(*args, **(kwargs or {}))
            for one in torch.utils._pytree.tree_leaves(made):
                if isinstance(one, torch.Tensor) and int(one.untyped_storage()._cdata) not in self.known:
                    self.alive[one.untyped_storage()] = None
            self.most = max(self.most, sum(one.nbytes() for one in self.alive))
            return made

    return Watch


@cache
def _handed_over() -> Any:
    """A function whose backward pass makes the gradients of its arguments, so that nobody else holds them."""
    import torch

    class HandedOver(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *results: Any) -> Any:
            ctx.forms = [(one.shape, one.dtype) for one in results]
            return results[0].new_empty(())

        @staticmethod
        def backward(ctx: Any, _: Any) -> Any:
            return tuple(torch.empty(shape, dtype=dtype) for shape, dtype in ctx.forms)

    return HandedOver
