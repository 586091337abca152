"""Equal runs of an operator give and keep the same, but for the storages: what such runs have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from cdmpp.network.eager.temporaries import Gradients
from cdmpp.network.eager.without_values import Known


class Form(NamedTuple):
    """A run gives tensors with storages of their own."""

    results: tuple[tuple[tuple[int, ...], tuple[int, ...], Any, bool] | None, ...]
    """Shape, strides and type of each result, and whether a gradient goes through it; None where it is None."""
    many: Any
    """``tuple`` or ``list`` where there are several; None: one."""
    kept: tuple[tuple[str, int, int], ...]
    """The backward pass reads these: a storage of an ``argument`` or a ``result``, by its place, or of its ``own``, and
    its bytes."""
    last: str
    """The same as ``Saved.last``."""
    backward: Gradients

    def values(self) -> list[Any]:
        """Make the results anew, without values."""
        import torch

        found = list[Any]()
        for one in self.results:
            value = None
            if one is not None:
                shape, stride, dtype, learns = one
                value = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
                if learns:
                    function, source = _history()
                    value = function.apply(value, source)
            found.append(value)
        return found


@cache
def forms() -> Known[Form]:
    """Return what is known in this process: target, kind of the device and arguments -> form."""
    return Known()


@cache
def known_gradients() -> Known[Gradients]:
    """Return how gradients are made of those, and of views, which have no form."""
    return Known()


def form_of(
    found: Any, number_of: Callable[[Any], int], new: set[int], packed: Mapping[int, int], last: str,
    labels: Mapping[int, int], backward: Gradients, of_own: bool = False,
) -> Form | None:  # fmt: skip
    """Return the form of a run; None where it gives views, parts of storages or what is no tensor.

    Args:
        found: what it gave.
        number_of: the number of a tensor's storage.
        new: numbers of the storages that it made.
        packed: numbers of those that its backward pass reads: bytes.
        last: as of ``Saved``.
        labels: numbers of the storages of its arguments: places.
        backward: how its gradients are made.
        of_own: whether a view of all of what it made itself counts as no view.
    """
    import torch

    values = found if isinstance(found, tuple | list) else (found,)
    tensors = [one for one in values if one is not None]
    if not all(isinstance(one, torch.Tensor) for one in tensors):
        return None
    numbers = [number_of(one) for one in tensors]
    if len({*numbers}) < len(numbers) or not {*numbers} <= new or not all(_is_whole(one, of_own) for one in tensors):
        return None
    own, kept = dict[int, int](), list[tuple[str, int, int]]()
    for number, size in packed.items():
        if number in labels:
            kept.append(("argument", labels[number], size))
        elif number in numbers:
            kept.append(("result", numbers.index(number), size))
        else:
            kept.append(("own", own.setdefault(number, len(own)), size))
    results = tuple(
        None if one is None else (tuple(one.shape), one.stride(), one.dtype, one.requires_grad) for one in values
    )
    return Form(results, type(found) if isinstance(found, tuple | list) else None, tuple(kept), last, backward)


def _is_whole(tensor: Any, of_own: bool) -> bool:
    """True for what is no view, or may be one, and as large as its storage."""
    is_all = tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes()
    return bool((of_own or tensor._base is None) and not tensor.storage_offset() and is_all)


@cache
def _history() -> tuple[Any, Any]:
    """A function that lets a gradient go through a tensor, which becomes no view, and something that learns."""
    import torch

    class Learned(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, _: Any) -> Any:
            ctx.mark_dirty(x)
            return x

    return Learned, torch.zeros(1, requires_grad=True)
