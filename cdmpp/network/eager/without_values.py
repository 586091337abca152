"""Operators run on a CPU's tensors without values: what comes out has a shape, strides and a type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Generic, TypeVar

_MOST = 20_000
_Value = TypeVar("_Value")


class Known(Generic[_Value]):
    """What was found once; so much of it that it takes some 50 MB, then all is forgotten."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._found = dict[object, _Value]()

    def get(self, key: object) -> _Value | None:
        """Return what was found under a key; None where nothing was, or a size in the key depends on values."""
        try:
            return self._found.get(key)
        except TypeError:
            return None

    def put(self, key: object, value: _Value) -> None:
        """Remember it, if it can be."""
        try:
            hash(key)
        except TypeError:
            return
        if len(self._found) >= _MOST:
            self._found.clear()
        self._found[key] = value


class Runs:
    """Equal calls run once, whichever graph they stand in, and share the tensors of their results.

    Nobody may write into these, or take them for those of one node.
    """

    def __init__(self) -> None:
        """Begin with nothing known."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._known = Known[Any]()

    def made(self, value: Any) -> bool:
        """Return True for a tensor that was made here, so that it can be shared."""
        return getattr(value, "fake_mode", None) is self.mode

    def run(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator on values, gradients off. It raises what the operator raises."""
        import torch

        tags = getattr(target, "tags", ())
        if torch.Tag.inplace_view in tags:  # it would change what other nodes share
            with self.mode, torch.no_grad():
                args = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, args)
                return target(*args, **kwargs)
        key = target, key_of(args), key_of(kwargs)
        if (known := self._known.get(key)) is not None:
            return known
        with self.mode, torch.no_grad():
            found = target(*on_cpu(args), **on_cpu(kwargs))
        self._known.put(key, found)
        return found


@cache
def runs() -> Runs:
    """Return those of this process."""
    return Runs()


def on_cpu(given: Any) -> Any:
    """Return arguments with the CPU in place of other devices."""
    import torch

    if isinstance(given, tuple | list):
        return type(given)(map(on_cpu, given)) if type(given) in (tuple, list) else [*map(on_cpu, given)]
    if isinstance(given, Mapping):
        return {name: on_cpu(value) for name, value in given.items()}
    return torch.device("cpu") if isinstance(given, torch.device) else given


def told(tensor: Any) -> tuple[Any, ...]:
    """Return what a tensor without values is, for a key."""
    return (*tensor.shape, None, *tensor.stride(), tensor.dtype, tensor.layout, tensor.storage_offset())


def key_of(given: Any, told: Callable[[Any], Any] = told) -> Any:
    """Return all that a result depends on of arguments, for a key; ``told``: of a tensor."""
    import torch

    if isinstance(given, torch.Tensor):
        return told(given)
    if isinstance(given, tuple | list):
        return tuple(key_of(one, told) for one in given)
    if isinstance(given, Mapping):
        return tuple((name, key_of(value, told)) for name, value in given.items())
    return type(given), given
