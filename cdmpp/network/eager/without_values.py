"""Operators run on tensors without values, of the device meta: what comes out has a shape, strides and a type.

That is a tenth of the work of ``FakeTensorMode``, which is left to the few operators that torch answers for otherwise
on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any, Generic, TypeVar

from cdmpp.operators.aten import ATTENTION_CALL, name_of_target
from cdmpp.operators.aten_convolution import CONVOLUTIONS
from cdmpp.operators.aten_norm import BATCH_NORMS, ROW_NORMS
from cdmpp.operators.aten_recurrent import GATES

ON_CPU = frozenset({*CONVOLUTIONS, *BATCH_NORMS, *ROW_NORMS, *GATES, ATTENTION_CALL, "embedding_bag"})
"""Names of operators that give or keep other tensors on the device meta than on a CPU, or in other layouts."""
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
        import torch

        return type(value) is torch.Tensor and value.is_meta

    def run(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator on values, gradients off. It raises what the operator raises."""
        import torch

        tags = getattr(target, "tags", ())
        if torch.Tag.inplace_view in tags:  # it would change what other nodes share
            with torch.no_grad():
                args = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, args)
                return target(*args, **kwargs)
        key = target, key_of(args), key_of(kwargs)
        if (known := self._known.get(key)) is not None:
            return known
        is_on_cpu = name_of_target(target) in ON_CPU
        made = on_cpu(self.mode, args, kwargs)[:2] if is_on_cpu else on_meta(target, args, kwargs)
        with torch.no_grad(), self.mode if is_on_cpu else nullcontext():
            found = target(*made[0], **made[1])
        if is_on_cpu:
            found = torch.utils._pytree.tree_map_only(torch.Tensor, hollow, found)
        self._known.put(key, found)
        return found


@cache
def runs() -> Runs:
    """Return those of this process."""
    return Runs()


def hollow(value: Any, requires_grad: bool = False) -> Any:
    """Return a tensor of the device meta that is like another one."""
    import torch

    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return made.requires_grad_(requires_grad)


def on_cpu(mode: Any, args: Any, kwargs: Any) -> tuple[Any, Any, list[tuple[Any, Any]]]:
    """Return the arguments of a call as a CPU's under ``FakeTensorMode``, and each tensor with what stands for it.

    These have storages of their own.
    """
    import torch

    pairs = dict[int, tuple[Any, Any]]()

    def moved(one: Any) -> Any:
        if isinstance(one, torch.device):
            return torch.device("cpu")
        if not isinstance(one, torch.Tensor):
            return one
        if id(one) not in pairs:
            with mode:
                made = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype)
            pairs[id(one)] = one, made.requires_grad_(one.requires_grad)
        return pairs[id(one)][1]

    args, kwargs = torch.utils._pytree.tree_map(moved, (args, dict(kwargs)))
    return args, kwargs, list(pairs.values())


def on_meta(target: Any, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
    """Return the arguments of a call with the device meta in place of others, also where it would make a new tensor."""
    import torch

    def moved(given: Any) -> Any:
        if isinstance(given, tuple | list):
            return type(given)(map(moved, given)) if type(given) in (tuple, list) else [*map(moved, given)]
        if isinstance(given, Mapping):
            return {name: moved(value) for name, value in given.items()}
        return torch.device("meta") if isinstance(given, torch.device) else given

    args, kwargs = moved(args), moved(kwargs)
    if makes_anew(target):
        kwargs["device"] = torch.device("meta")
    return args, kwargs


@cache
def makes_anew(target: Any) -> bool:
    """Return True for an operator that is told the device of its result, and reads no tensor whose device it takes."""
    arguments = getattr(getattr(target, "_schema", None), "arguments", ())
    reads = any("Tensor" in str(one.type) for one in arguments)
    return not reads and any(one.name == "device" for one in arguments)


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
