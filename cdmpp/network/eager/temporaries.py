"""Autograd's formulas and their temporaries: the gradients of one node run on tensors without values, watched."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple

from cdmpp.network.eager.formula import Formula, Recorder
from cdmpp.network.eager.kept import told_of_kept


class Gradients(NamedTuple):
    """The gradients of one node are made so."""

    bytes: int | None
    """Most bytes alive meanwhile; 0 where there are no gradients, None: unknown."""
    formula: Formula | None = None
    """The kernels that make them; None: unknown, or some are of a kind that nothing answers for."""


def gradients_of(run: Any, args: Any, kwargs: Any, mode: Any = None) -> Gradients:
    """Run the formulas of one node.

    The gradient that autograd hands to the node, those that the node makes, and all that its formulas write on the way
    are counted, storages once; what the forward pass kept is not. Formulas are run as they are, so ``x ** 2``, whose
    formula is three kernels, holds three tensors at a time. A formula that reads values cannot run here. The node
    runs anew, on arguments of which none comes from another one. What writes in place has the formula of the operator
    that does not.

    Args:
        run: the operator, such as ``aten.mul.Tensor``, or a function in its place.
        args: its arguments, which are not changed.
        kwargs: its arguments by name.
        mode: ``FakeTensorMode`` of the arguments; None: they are of the device meta.
    """
    import torch

    given = [one for one in _tensors((args, kwargs)) if one.requires_grad]
    if not given:
        return Gradients(0)
    if (apart := _not_in_place(run)) is None:
        return Gradients(None)
    alone = {id(one): one.detach().requires_grad_(one.requires_grad) for one in _tensors((args, kwargs))}
    args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, lambda one: alone[id(one)], (args, kwargs))
    wanted = [alone[key] for key in dict.fromkeys(map(id, given))]
    known = {_number(one) for one in alone.values()}

    watch, handed_over = _watch()(known), _handed_over()
    try:
        with mode or nullcontext(), torch.enable_grad():
            with told_of_kept(lambda tensor: known.add(_number(tensor))):
                results = [one for one in _tensors(apart(*args, **kwargs)) if one.requires_grad]
            if not results:
                return Gradients(0)
            known |= set(map(_number, results))
            loss = handed_over.apply(*results)
            seed = torch.empty_like(loss)
            with watch:
                made = torch.autograd.grad(loss, wanted, seed, retain_graph=True, allow_unused=True)
    except RuntimeError:  # also that of fake tensors whose values, or whose shapes by value, a formula reads
        return Gradients(None)
    places = {key: place for place, key in reversed([*enumerate(map(id, _tensors((args, kwargs))))])}
    placed = {places[id(one)]: gradient for one, gradient in zip(wanted, made, strict=True)}
    return Gradients(int(watch.most), watch.recorder.formula(placed))


def _not_in_place(run: Any) -> Any | None:
    """Return an operator that gives what ``run`` writes in place, or ``run`` if it writes nowhere; None: there is none.

    ``pow_.Scalar`` is ``pow.Tensor_Scalar``: overloads may have other names, so their arguments decide.
    """
    import torch

    schema = getattr(run, "_schema", None)
    if schema is None or not schema.is_mutable:
        return run
    packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::").removesuffix("_"), None)
    wanted = [(one.name, str(one.type)) for one in schema.arguments]
    overloads = [getattr(packet, name) for name in packet.overloads()] if packet else []
    same = [one for one in overloads if [(a.name, str(a.type)) for a in one._schema.arguments] == wanted]
    return next((one for one in same if not one._schema.is_mutable), None)


def _tensors(given: Any) -> list[Any]:
    import torch

    return [one for one in torch.utils._pytree.tree_leaves(given) if isinstance(one, torch.Tensor)]


def _number(tensor: Any) -> int:
    """The address of its storage."""
    return int(tensor.untyped_storage()._cdata)


@cache
def _watch() -> Any:
    """A class of modes that sum the storages which kernels under it made and which are still there."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.weak import WeakIdKeyDictionary

    class Watch(TorchDispatchMode):
        def __init__(self, known: Collection[int]) -> None:
            super().__init__()
            self.known, self.alive, self.most = known, WeakIdKeyDictionary(), 0
            self.recorder = Recorder()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            self.recorder.add(func, args, kwargs or {}, made)
            for one in _tensors(made):
                if _number(one) not in self.known:
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
            ctx.forms = [(one.shape, one.dtype, one.device) for one in results]
            return results[0].new_empty(())

        @staticmethod
        def backward(ctx: Any, _: Any) -> Any:
            return tuple(torch.empty(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.forms)

    return HandedOver
