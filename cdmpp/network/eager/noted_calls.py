"""Operators that a network calls, noted while its Python runs on tensors without values, as an exporter lets it run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from cdmpp.network.eager.without_values import hollow, runs

_DETACH = "aten.detach.default"
"""Exporters leave it out: nothing that is read here has gradients."""


class UnlikeError(Exception):
    """The network does not run what its export says."""


@dataclass(frozen=True)
class Result:
    """A tensor is this one of the results of a call."""

    call: int
    place: int


@dataclass(frozen=True)
class Given:
    """A tensor is this input or weight: the places of the nodes of the export that may stand for it."""

    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Call:
    """An operator was called."""

    target: Any
    given: tuple[Any, ...]
    """Arguments in a row: ``Result`` and ``Given`` of tensors, and what is none."""
    tensors: tuple[Any, ...]
    """Those of them that are tensors, without values."""
    made: tuple[Any, ...]
    """Results in a row, without values."""
    node: Any
    """Node of the export; None: nobody reads what it gives, and the export left it out."""


class Rule(Protocol):
    """What a run has to be like, and what its calls give."""

    def made(self, number: int, call: Call, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return what the call of this number gives, and the node that it is; ``UnlikeError``: it may not be there."""
        ...

    def leaves_out(self, number: int, target: Any) -> bool:
        """Return whether there is no call of this operator here."""
        ...


@dataclass(eq=False)
class Noted:
    """Calls, in their order, and where each tensor comes from."""

    rule: Rule
    calls: list[Call] = field(default_factory=list)
    _known: dict[int, tuple[Any, Any, Any]] = field(default_factory=dict)
    """Number of a tensor -> itself, as one without values, and where it comes from."""

    def give(self, tensor: Any, value: Any, source: Any) -> Any:
        """Remember a tensor, as one without values, and where it comes from."""
        self._known[id(tensor)] = tensor, value, source
        return tensor

    def input(self, one: Any, name: Any) -> Any:
        """Return an input as one without values."""
        import torch

        if not isinstance(one, torch.Tensor):
            return one
        return self.give(_fake(value := hollow(one)), value, Given((name,)))

    def source(self, one: Any) -> Any:
        """Return where a tensor comes from; what is none is returned as it is."""
        import torch

        return self._of(one)[2] if isinstance(one, torch.Tensor) else one

    def _of(self, tensor: Any) -> tuple[Any, Any, Any]:
        if (known := self._known.get(id(tensor))) is None:
            raise UnlikeError("it reads a tensor that is no weight")
        return known

    def call(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Note a call, and return what it gives."""
        import torch
        from torch.utils import _pytree

        leaves, structure = _pytree.tree_flatten((args, dict(kwargs)))
        known = [self._of(one) if isinstance(one, torch.Tensor) else None for one in leaves]
        given = tuple(one if own is None else own[2] for one, own in zip(leaves, known, strict=True))
        tensors = tuple(own[1] for own in known if own is not None)
        values = (one if own is None else own[1] for one, own in zip(leaves, known, strict=True))
        number, writes = len(self.calls), _written(target)
        if str(target) == _DETACH and self.rule.leaves_out(number, target):
            return self.give(_fake(tensors[0]), tensors[0], given[0])
        if writes not in ((), (0,)) or torch.Tag.inplace_view in target.tags:
            raise UnlikeError(f"{target} writes into what it is given")
        call = Call(target, given, tensors, (), None)
        args_of, kwargs_of = _pytree.tree_unflatten(list(values), structure)
        made, node = self.rule.made(number, call, args_of, kwargs_of)
        flat = tuple(_pytree.tree_leaves(made))
        self.calls.append(Call(target, given, tensors, flat, node))
        if writes:
            if len(flat) != 1 or flat[0].shape != args[0].shape:
                raise UnlikeError(f"{target} changes the shape of what it is given")
            return self.give(args[0], flat[0], Result(number, 0))
        places = iter(range(len(flat)))

        def result(value: Any) -> Any:
            return self.give(_fake(value), value, Result(number, next(places)))

        return map_tensors(result, made)


def _fake(value: Any) -> Any:
    """Return a tensor without values that says it is on a CPU, as those of an exporter do."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    return FakeTensor(runs().mode, value, torch.device("cpu"))


@contextmanager
def noting(noted: Noted) -> Iterator[None]:
    """Note all operators that are called, before torch takes any apart, as exporters see them."""
    import torch
    from torch._C import _EnablePreDispatch
    from torch._dispatch.python import enable_python_dispatcher
    from torch.export import _trace

    with (
        _trace._compiling_state_context(),
        torch.backends.cudnn.flags(enabled=False),
        enable_python_dispatcher(),
        _EnablePreDispatch(),
        _mode()(noted),
    ):
        yield


@cache
def _mode() -> Any:
    import torch
    from torch._dispatch.python import no_python_dispatcher
    from torch._subclasses.schema_check_mode import SchemaCheckMode

    class Noting(SchemaCheckMode):  # the only kind of mode besides those of tracers that is asked before all else
        def __init__(self, noted: Noted) -> None:
            super().__init__()
            self._dispatch_key = torch._C.DispatchKey.PreDispatch  # type: ignore[attr-defined]
            self.noted = noted

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with no_python_dispatcher():
                return self.noted.call(func, args, kwargs or {})

    return Noting


def map_tensors(run: Callable[[Any], Any], value: Any) -> Any:
    """Return what an operator gave, with ``run`` of each tensor; ``UnlikeError``: it gave something else, too."""
    import torch

    if isinstance(value, torch.Tensor):
        return run(value)
    if isinstance(value, tuple | list):
        return type(value)(map_tensors(run, one) for one in value)
    raise UnlikeError("an operator gives what is no tensor")


@cache
def _written(target: Any) -> tuple[int, ...]:
    """Return the places of the arguments that an operator writes into."""
    arguments = target._schema.arguments
    return tuple(place for place, one in enumerate(arguments) if one.alias_info is not None and one.alias_info.is_write)
