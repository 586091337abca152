"""The casts that run in regions of ``torch.autocast``, which an exported graph does not have.

An export is made above the dispatcher's autocast: it records operators as the model calls them, next to results of the
types that they have below it. Each operator of a region is run again, on tensors without values, by the dispatcher of
the device that is asked about; what it casts before the operator becomes a node of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from cdmpp.errors import UnsupportedProgramError
from cdmpp.programs.autocast import AUTOCAST, DEVICES, REMEDY
from cdmpp.programs.composite import is_composite, take_apart
from cdmpp.programs.refusal import place_in_model
from cdmpp.programs.unguarded import unguarded


def with_casts(exported: Any, kind: str) -> None:
    """Make casts nodes of the graph, whose values get the types that they have on that kind of device.

    Args:
        exported: with regions brought into one graph (``regions.inlined``); it is changed.
        kind: ``cpu`` or ``gpu``.

    Raises:
        UnsupportedProgramError: what runs in a region cannot be known; it names the operator and the place.
    """
    if needs_casts(exported, kind):
        _Recast(exported, kind).run()


def needs_casts(exported: Any, kind: str) -> bool:
    """Return True if operators of the graph run in a region of autocast that is enabled on that kind of device."""
    return any(_is_active(node, kind) for node in exported.graph.nodes)


def _is_active(node: Any, kind: str) -> bool:
    region = node.meta.get(AUTOCAST)
    return node.op == "call_function" and region is not None and region.enabled and (
        kind == "gpu" or region.device == "cpu"
    )  # fmt: skip


class _Recast:
    def __init__(self, exported: Any, kind: str) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        self.exported, self.graph, self.kind, self.device = exported, exported.graph, kind, DEVICES[kind]
        named, state = exported.graph_signature.inputs_to_parameters, exported.state_dict
        self.leaves = {key for key, name in named.items() if state[name].requires_grad}
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.values: dict[Any, Any] = {}
        """Node -> its value, on the device."""
        self.changed: set[Any] = set()
        """Nodes whose type is another one than the export said."""
        self.casts: dict[Any, Any] = {}
        """(region, node, type) -> the cast of a weight, made once in a region."""

    def run(self) -> None:
        with self.mode, unguarded():
            for node in list(self.graph.nodes):
                if node.op != "call_function":
                    continue
                if getattr(node.target, "__name__", "").startswith("_assert_tensor_metadata"):
                    self.graph.erase_node(node)  # its type may be another one now
                elif _is_active(node, self.kind):
                    self._in_region(node)
                elif self.changed.intersection(node.all_input_nodes):
                    self._keep(node, self._called(node))

    def _value(self, node: Any) -> Any:
        from torch.utils import _pytree

        if node not in self.values:
            self.values[node] = _pytree.tree_map(self._moved, node.meta.get("val"))
        return self.values[node]

    def _moved(self, value: Any) -> Any:
        import torch

        if not isinstance(value, torch.Tensor):
            return value
        strides = tuple(int(stride) for stride in value.stride())
        return torch.empty_strided(tuple(map(int, value.shape)), strides, dtype=value.dtype, device=self.device)

    def _keep(self, node: Any, value: Any) -> None:
        from torch.utils import _pytree

        before, after = (
            [getattr(one, "dtype", None) for one in _pytree.tree_leaves(of)] for of in (node.meta.get("val"), value)
        )
        self.values[node] = node.meta["val"] = value
        if before != after:
            self.changed.add(node)

    def _called(self, node: Any) -> Any:
        import torch
        from torch.fx import map_arg
        from torch.utils import _pytree

        args, kwargs = map_arg((node.args, dict(node.kwargs)), self._value)
        place = torch.device(self.device) if self.device == "cpu" else torch.device(self.device, 0)
        args, kwargs = _pytree.tree_map_only(torch.device, lambda _: place, (args, kwargs))
        return node.target(*args, **kwargs)

    def _in_region(self, node: Any) -> None:
        region, given = node.meta[AUTOCAST], [one for one in node.all_input_nodes if hasattr(self._value(one), "dtype")]
        plain = CastLog()
        with _suppressed(), plain:
            self._called(node)
        log = CastLog()
        with autocast_on(self.device, region.dtype), log:
            value = self._called(node)
        own = {key: dtype for key, dtype in log.types.items() if plain.types.get(key) is not dtype}
        first = next(iter(own.values()), None)  # a rule casts to one type; others are casts of the operator itself
        casts = {one: first for one in given if own.get(id(self._value(one)), ...) is first}
        if not _has_autocast(node.target, self.device) and log.count - plain.count != len(casts):
            self._take_apart(node, region.dtype)
            return
        for one, dtype in casts.items():
            node.replace_input_with(one, self._cast(node, one, dtype))
        if _type(self._called(node)) != _type(value):  # it is given the type of its result
            if "dtype" not in {argument.name for argument in node.target._schema.arguments}:
                self._refuse(node, f"gives {_type(value)}")
            node.kwargs = {**node.kwargs, "dtype": _type(value)}
        self._keep(node, value)

    def _take_apart(self, node: Any, dtype: Any) -> None:
        """Put what runs of a composite operator, with the casts inside, in its place."""
        from torch.utils import _pytree

        before, kinds = set(self.graph.nodes), [_type(one) for one in _pytree.tree_leaves(node.meta.get("val"))]
        made = (
            take_apart(self.exported, node, self._value, lambda: autocast_on(self.device, dtype))
            if is_composite(node)
            else None
        )
        if made is None:
            self._refuse(node, "casts some of what it makes inside")
        for one in set(self.graph.nodes) - before:
            one.meta.pop(AUTOCAST, None)
        self.changed.update(
            one for one, kind in zip(_pytree.tree_leaves(made), kinds, strict=True) if _type(one.meta["val"]) != kind
        )

    def _cast(self, node: Any, given: Any, dtype: Any) -> Any:
        import torch

        region = node.meta[AUTOCAST]
        is_kept = region.caches and given.name in self.leaves and self._value(given).dtype == torch.float32
        key = (region.region, given, dtype)
        if is_kept and key in self.casts:
            return self.casts[key]
        with self.graph.inserting_before(node):
            cast = self.graph.call_function(torch.ops.aten._to_copy.default, (given,), {"dtype": dtype})
        cast.meta = {**node.meta, "val": self._value(given).to(dtype)}
        del cast.meta[AUTOCAST]
        self.values[cast] = cast.meta["val"]
        if is_kept:
            self.casts[key] = cast
        return cast

    def _refuse(self, node: Any, what: str) -> NoReturn:
        raise UnsupportedProgramError(
            f"{node.target} ({place_in_model(node)}) {what} under torch.autocast, which is not read: {REMEDY}"
        )


def _type(value: Any) -> Any:
    first = value[0] if isinstance(value, tuple | list) else value
    return getattr(first, "dtype", None)


def _has_autocast(target: Any, device: str) -> bool:
    """True if autocast has a rule of its own for an operator."""
    import torch

    if not isinstance(target, torch._ops.OpOverload):
        return False
    name = target._schema.name + (f".{target._overloadname}" if target._overloadname != "default" else "")
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, f"Autocast{device.upper()}"))


@contextmanager
def autocast_on(device: str, dtype: Any) -> Iterator[None]:
    """Does what ``torch.autocast`` does, which would turn itself off on a machine without that device."""
    import torch

    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device), torch.is_autocast_cache_enabled()
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])
        torch.set_autocast_cache_enabled(before[2])


@contextmanager
def _suppressed() -> Iterator[None]:
    """Without autocast an operator may refuse the types that it is given."""
    try:
        yield
    except (RuntimeError, TypeError):
        return


class CastLog:
    """Casts that an operator makes while it runs."""

    def __init__(self) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode

        log = self
        self.count = 0
        """Casts in all."""
        self.types: dict[int, Any] = {}
        """Id of a tensor -> its type, of casts before anything else runs: later ones are the operator's own."""
        self.has_begun = False

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
                log.add(func, args, kwargs or {})
                return func(*args, **(kwargs or {}))

        self.mode = Mode()

    def add(self, function: Any, args: Any, kwargs: Any) -> None:
        """Note a call."""
        import torch

        if function is torch.ops.aten._to_copy.default and kwargs.get("dtype") is not None:
            self.count += 1
            if not self.has_begun:
                self.types.setdefault(id(args[0]), kwargs["dtype"])
        elif function.namespace == "aten":  # not a question for the device
            self.has_begun = True

    def __enter__(self) -> None:
        self.mode.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.mode.__exit__(*error)
