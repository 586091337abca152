"""Loops over experts in a user's own module, while a network is exported: as many tokens for each as is said.

Which tokens go to an expert is a matter of values: a router takes the largest of its scores, and a loop looks for the
tokens of one expert after the other, by ``nonzero``, ``where`` or a mask. Tensors are followed from the choice
(``topk``, ``argmax``, ``max``) to the search, so that the sizes of what is found are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from cdmpp.programs.experts import expert_rows

EVENLY = "tokens of experts that the network searches by value are those that moe_imbalance says"
"""It is said of every network that has such a loop."""
_CHOOSE = ("topk", "argmax", "max")
"""Functions that take the largest of scores along an axis."""
_SAME = (
    *("view", "reshape", "flatten", "squeeze", "unsqueeze", "contiguous", "clone", "detach", "cpu", "cuda", "ravel"),
    *("to", "long", "int", "bool", "float", "permute", "transpose", "t", "type"),
)
"""Methods that show a tensor in another form or type."""
_RESHAPE = ("view", "reshape", "flatten", "ravel", "squeeze", "unsqueeze", "type")
"""Those of them after which nobody knows where an axis is."""
_RULES = {
    **dict.fromkeys(_SAME, "same"), **dict.fromkeys(("__eq__", "eq"), "equal"),
    **dict.fromkeys(("__gt__", "gt", "greater", "__ne__", "ne"), "more"), "sum": "summed", "any": "true_at",
    "bincount": "counted", "tolist": "listed", "unbind": "walked", **dict.fromkeys(("where", "nonzero"), "searched"),
    **dict.fromkeys(("item", "__int__", "__index__", "__bool__"), "single"),
}  # fmt: skip
"""Name of a function -> the method of ``_Router`` that follows marks through it."""


@dataclass(frozen=True)
class _Choice:
    """A tensor of numbers of experts, of so many."""

    experts: int


@dataclass(frozen=True)
class _Hot:
    """A tensor with an axis of experts, which is 1 at those that were chosen; ``rows`` choices in all."""

    experts: int
    rows: int
    axis: int


@dataclass(frozen=True)
class _Mask:
    """A tensor that is true at the tokens of one expert, which are ``rows``."""

    rows: int


@dataclass(frozen=True)
class _Counts:
    """A vector of the tokens of each expert, or of whether there are any."""

    rows: tuple[int, ...]


@dataclass(frozen=True)
class _Numbers:
    """A tensor whose values are known before anything runs."""

    values: tuple[int, ...]


@contextmanager
def experts_found(imbalance: float, decided: set[str], told: dict[str, None]) -> Iterator[None]:
    """Let loops over experts find as many tokens for each as ``imbalance`` says.

    Args:
        imbalance: tokens of the busiest expert over the mean.
        decided: ``imbalance`` is put in where it decided what runs.
        told: ``EVENLY`` is put in then.
    """

    def rows_of(rows: int, experts: int) -> list[int]:
        decided.add("imbalance")
        told[EVENLY] = None
        return expert_rows(rows, experts, imbalance)

    with _mode()(_Router(rows_of)):
        yield


@cache
def _mode() -> Any:
    """A class of modes under which a router sees every function that is called on tensors."""
    from torch.overrides import TorchFunctionMode

    class Routing(TorchFunctionMode):
        def __init__(self, router: _Router) -> None:
            super().__init__()
            self.router = router

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return self.router.call(func, args, kwargs or {})

    return Routing


class _Router:
    """It follows marks through the functions that are called."""

    def __init__(self, rows_of: Callable[[int, int], list[int]]) -> None:
        import torch
        from torch.utils.weak import WeakIdKeyDictionary

        self.torch, self.rows_of, self.marks = torch, rows_of, WeakIdKeyDictionary()

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(func, "__name__", "")
        if name in _CHOOSE and args and isinstance(args[0], self.torch.Tensor):
            return self.chosen(func, name, args, kwargs)
        if name == "one_hot":
            return self.hot(func(*args, **kwargs), args)
        if name in ("__getitem__", "__setitem__"):
            return self.indexed(func, name, args)
        found = NotImplemented
        if name in _RULES and any(self.mark_of(one) for one in args[:2]):
            found = getattr(self, _RULES[name])(func, name, args, kwargs)
        return func(*args, **kwargs) if found is NotImplemented else found

    def mark(self, tensor: Any, mark: Any) -> Any:
        self.marks[tensor] = mark
        return tensor

    def chosen(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        found = func(*args, **kwargs)
        place = 2 if name == "topk" else 1
        axis = kwargs.get("dim", args[place] if len(args) > place else -1 if name == "topk" else None)
        if not isinstance(axis, int) or not args[0].is_floating_point():
            return found
        indices = found if isinstance(found, self.torch.Tensor) else found[1]
        self.mark(indices, _Choice(args[0].shape[axis]))
        return found

    def hot(self, found: Any, args: Any) -> Any:
        return self.mark(found, _Hot(found.shape[-1], args[0].numel(), found.dim() - 1))

    def same(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Keep the mark of what is only seen otherwise."""
        found, mark = func(*args, **kwargs), self.marks[args[0]]
        if isinstance(mark, _Hot):
            axis = _moved(name, args, kwargs, mark.axis, args[0].dim())
            return found if axis is None else self.mark(found, _Hot(mark.experts, mark.rows, axis))
        return self.mark(found, mark) if isinstance(found, self.torch.Tensor) else found

    def equal(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        mark, other = self.marks.get(args[0]), args[1]
        number = other if isinstance(other, int) else self.number(other)
        found = func(*args, **kwargs)
        if isinstance(mark, _Choice) and number is not None and 0 <= number < mark.experts:
            return self.mark(found, _Mask(self.rows_of(args[0].numel(), mark.experts)[number]))
        return found

    def more(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Compare counts with zero."""
        mark = self.marks.get(args[0])
        found = func(*args, **kwargs)
        return self.mark(found, mark) if isinstance(mark, _Counts) and args[1:] == (0,) else found

    def summed(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        mark, found = self.marks.get(args[0]), func(*args, **kwargs)
        axes = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if isinstance(mark, _Mask) and axes is None:
            return self.mark(found, _Numbers((mark.rows,)))
        if isinstance(mark, _Hot) and axes is not None and found.dim() == 1 and found.shape[0] == mark.experts:
            along = {axis % args[0].dim() for axis in (axes if isinstance(axes, tuple | list) else (axes,))}
            if mark.axis not in along:
                return self.mark(found, _Counts(tuple(self.rows_of(mark.rows, mark.experts))))
        return found

    def true_at(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        mark, found = self.marks.get(args[0]), func(*args, **kwargs)
        if isinstance(mark, _Mask):
            is_whole = len(args) == 1 and not kwargs
            return self.mark(found, _Numbers((int(mark.rows > 0),)) if is_whole else mark)
        return found

    def counted(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        mark = self.marks.get(args[0])
        many = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
        if not isinstance(mark, _Choice) or many != mark.experts:
            return NotImplemented
        found = self.torch.histc(args[0].to(self.torch.float32), bins=many, min=0, max=many - 1).to(self.torch.int64)
        return self.mark(found, _Counts(tuple(self.rows_of(args[0].numel(), mark.experts))))

    def listed(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        mark = self.marks.get(args[0])
        if isinstance(mark, _Counts) and args[0].dtype != self.torch.bool:
            return list(mark.rows)
        if isinstance(mark, _Numbers):
            return list(mark.values) if args[0].dim() == 1 else NotImplemented
        return NotImplemented

    def single(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        number = self.number(args[0])
        return NotImplemented if number is None else bool(number) if name == "__bool__" else number

    def walked(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Go through known numbers, or over counts, one by one."""
        mark, found = self.marks.get(args[0]), list(args[0].unbind(0))
        values = mark.values if isinstance(mark, _Numbers) else mark.rows if isinstance(mark, _Counts) else ()
        if len(values) == len(found):
            for one, value in zip(found, values, strict=True):
                self.mark(one, _Numbers((value,)))
        return tuple(found)

    def searched(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Find where a mask is true: a scan over all of it stands for that."""
        x, mark = args[0], self.marks.get(args[0])
        if name == "where" and len(args) > 1:
            return NotImplemented
        if isinstance(mark, _Counts):
            busy = [place for place, rows in enumerate(mark.rows) if rows]
            places = self.mark(x.to(self.torch.int64).cumsum(0)[: len(busy)], _Numbers(tuple(busy)))
        elif isinstance(mark, _Mask):
            places = _scan(x, mark.rows)
        else:
            return NotImplemented
        if name == "where" or kwargs.get("as_tuple") or True in args[1:]:
            return (places,) * max(x.dim(), 1)
        found = places.unsqueeze(-1).expand(-1, x.dim())
        return self.mark(found, self.marks[places]) if places in self.marks else found

    def indexed(self, func: Any, name: str, args: Any) -> Any:
        x, index, *value = args
        parts = list(index) if isinstance(index, tuple) else [index]
        masks = [place for place, one in enumerate(parts) if isinstance(self.mark_of(one), _Mask)]
        if masks and isinstance(x, self.torch.Tensor):
            place = masks[0]
            one = parts[place]
            if place == 0 and one.dim() > 1:
                x = x.flatten(0, one.dim() - 1)
            parts[place] = _scan(one, self.marks[one].rows)
            return func(x, parts[0] if len(parts) == 1 else tuple(parts), *value)
        found = func(*args)
        mark = self.mark_of(x)
        if name == "__setitem__" or mark is None:
            return found
        number = index if isinstance(index, int) and not isinstance(index, bool) else self.number(index)
        if isinstance(mark, _Choice):
            return self.mark(found, mark)
        if isinstance(mark, _Counts | _Numbers) and number is not None and found.numel() == 1:
            values = mark.rows if isinstance(mark, _Counts) else mark.values
            return self.mark(found, _Numbers((values[number],)))
        if isinstance(mark, _Hot):
            last = isinstance(index, tuple) and len(index) == 2 and index[0] is Ellipsis
            number = index[1] if last and isinstance(index[1], int) else number
            if number is not None and mark.axis == (x.dim() - 1 if last else 0):
                return self.mark(found, _Mask(self.rows_of(mark.rows, mark.experts)[number]))
        return found

    def mark_of(self, one: Any) -> Any:
        return self.marks.get(one) if isinstance(one, self.torch.Tensor) else None

    def number(self, one: Any) -> int | None:
        mark = self.mark_of(one)
        return mark.values[0] if isinstance(mark, _Numbers) and len(mark.values) == 1 else None


def _scan(mask: Any, rows: int) -> Any:
    return mask.reshape(-1).cumsum(0)[:rows]


def _moved(name: str, args: Any, kwargs: Any, axis: int, rank: int) -> int | None:
    """Return where an axis is after a function of ``_SAME``; None where that is in doubt."""
    if name == "permute":
        order = args[1:] if len(args) > 2 else args[1] if len(args) > 1 else kwargs.get("dims", ())
        return [one % rank for one in order].index(axis)
    if name == "transpose":
        one, other = (place % rank for place in args[1:3]) if len(args) > 2 else (axis, axis)
        return {one: other, other: one}.get(axis, axis)
    if name == "t":
        return 1 - axis
    return axis if name not in _RESHAPE else None
