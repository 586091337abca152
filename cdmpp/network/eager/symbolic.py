"""One export of a network for many sizes of its inputs, with the conditions under which it is that of others."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import CodeType
from typing import Any, NamedTuple

from cdmpp.errors import CdmppError
from cdmpp.network.eager.divided import DividedExport
from cdmpp.network.eager.open_casts import put_casts
from cdmpp.network.eager.without_values import runs
from cdmpp.operators.aten_layout import tensors_in
from cdmpp.programs.casts import needs_casts, with_casts
from cdmpp.programs.exported import export
from cdmpp.programs.refusal import first_line

Shapes = Sequence[tuple[int, ...]]
"""The shape of each input, in the order in which ``pytree`` flattens them; empty of what is no tensor."""


def shapes_of(inputs: Any) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of all inputs."""
    from torch.utils import _pytree

    return tuple(tuple(map(int, getattr(one, "shape", ()))) for one in _pytree.tree_leaves(inputs))


def batch_in(shapes: Shapes) -> int:
    """Return the examples of inputs of these shapes."""
    return next((shape[0] for shape in shapes if shape), 1)


def symbolic_export(model: Any, inputs: tuple[Any, ...], opened: Sequence[Collection[int]], **options: Any) -> Any:
    """Export a model, with some sizes of its inputs left open.

    Args:
        model: a torch module.
        inputs: ``model(*inputs)`` runs.
        opened: axes of each input, as in ``Shapes``, whose sizes are open; they are 2 or more here.
        options: of ``exported.export``.

    Returns:
        A ``SymbolicExport``.

    Raises:
        CdmppError: torch cannot export it with open sizes.
    """
    from torch.export import Dim, ShapesCollection
    from torch.utils import _pytree

    leaves, structure = _pytree.tree_flatten(inputs)
    signature, dynamic = inspect.signature(model.forward), ShapesCollection()
    for one, axes in zip(leaves, opened, strict=True):
        if axes:
            dynamic[one] = dict.fromkeys(axes, Dim.AUTO)
    exported = export(model, inputs, dynamic=dynamic, **options)
    guards = getattr(exported, "_guards_code", None)
    if guards is None:
        raise CdmppError("this version of torch does not say for which sizes an export holds")
    try:
        codes = tuple(compile(text, "<guard>", "eval") for text in dict.fromkeys(guards))
    except SyntaxError as error:
        raise CdmppError(f"torch names a condition that cannot be read: {first_line(error)}") from error
    found = SymbolicExport(exported, signature, leaves, structure, codes, options.get("kind", ""))
    if len(found.places) != len(leaves):
        raise CdmppError("the export has other inputs than the model")
    if found.is_cast:
        given = shapes_of(inputs)
        put_casts(exported, found.at(given).graph, found.sizes(given))
    return replace(found)  # what was found of its graph may have changed


@dataclass(frozen=True, eq=False)
class SymbolicExport:
    """Its graph has expressions of the open sizes where an export has numbers."""

    exported: Any
    """``torch.export.ExportedProgram``"""
    signature: inspect.Signature
    leaves: Sequence[Any]
    structure: Any
    guards: tuple[CodeType, ...]
    """What torch assumed of the sizes while the model ran, such as the branch that was taken."""
    kind: str = ""
    """Kind of the device whose rules regions of autocast follow, as of ``exported.export``."""

    @cached_property
    def places(self) -> dict[Any, int]:
        """Node of each input -> its place among the leaves."""
        from torch.export.graph_signature import InputKind

        specs = self.exported.graph_signature.input_specs
        names = [spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT]
        nodes = {node.name: node for node in self.exported.graph.nodes if node.op == "placeholder"}
        return {nodes[name]: place for place, name in enumerate(names)}

    def holds(self, shapes: Shapes) -> bool:
        """Return whether an export at these shapes would have this graph.

        ``CdmppError``: a condition of torch's cannot be evaluated.
        """
        import torch
        from torch.utils import _pytree

        given = [
            torch.empty(shape, dtype=one.dtype, device="meta") if isinstance(one, torch.Tensor) else one
            for one, shape in zip(self.leaves, shapes, strict=True)
        ]
        arguments = self.signature.bind(*_pytree.tree_unflatten(given, self.structure)).arguments
        known = {"L": arguments, "torch": torch, "math": math}
        try:
            if not all(eval(code, known) for code in self.guards):  # noqa: S307  # torch wrote it
                return False
        except Exception as error:
            raise CdmppError(f"a condition of the export cannot be evaluated: {first_line(error)}") from error
        sizes = self.sizes(shapes)
        inputs_fit = all(
            tuple(map(sizes, node.meta["val"].shape)) == tuple(shapes[place])
            for node, place in self.places.items()
            if isinstance(node.meta.get("val"), torch.Tensor)
        )
        return inputs_fit and all(map(sizes, self._asserted))

    @cached_property
    def _asserted(self) -> tuple[Any, ...]:
        """What nodes of the graph assert of sizes while it runs."""
        asserting = [node for node in self.exported.graph.nodes if _name(node).startswith("_assert_scalar")]
        return tuple(getattr(node.args[0], "meta", {}).get("val", node.args[0]) for node in asserting)

    def sizes(self, shapes: Shapes) -> Sizes:
        """Return the sizes that the graph has where inputs have these shapes."""
        known: dict[str, int] = {}
        for node, place in self.places.items():
            for axis, size in enumerate(getattr(node.meta.get("val"), "shape", ())):
                if not isinstance(size, int) and size.node.expr.is_Symbol:
                    known.setdefault(str(size.node.expr), shapes[place][axis])
        return Sizes(known)

    def at(self, shapes: Shapes) -> DividedExport:
        """Return the export at these shapes, for which it has to hold."""
        sizes = self.sizes(shapes)
        graph = GraphAt(sizes, runs().mode)
        for node in self.exported.graph.nodes:
            graph.copy(node)
        return self.program(graph)

    def program(self, graph: GraphAt) -> DividedExport:
        """Return what stands for an ``ExportedProgram`` with a graph of known sizes, its casts of autocast made."""
        exported = self.exported
        made = DividedExport(graph.graph, exported.graph_module, exported.graph_signature, exported.state_dict)
        if self.is_cast:
            with_casts(made, self.kind)
        return made

    @cached_property
    def is_cast(self) -> bool:
        """Return True if autocast casts what operators of its graph read."""
        return bool(self.kind) and needs_casts(self.exported, self.kind)


class Sizes:
    """Expressions have these values at one choice of the open sizes."""

    def __init__(self, known: Mapping[str, int]) -> None:
        """Begin with the symbols."""
        self.known = dict(known)
        self._found: dict[Any, Any] = {}
        self._tensors: dict[Any, Any] = {}
        """Shape, strides and type -> a tensor without values, which nobody writes into."""

    def __call__(self, size: Any) -> Any:
        """Return the number that a size is; what is none is returned as it is."""
        expression = getattr(getattr(size, "node", None), "expr", None)
        if expression is None:
            return size
        if expression not in self._found:
            self._found[expression] = _evaluated(expression, self.known)
        return self._found[expression]

    def number(self, size: Any) -> Any:
        """Return the number of an expression; what is none is returned as it is."""
        if type(size) is int:
            return size
        if size not in self._found:
            self._found[size] = _evaluated(size, self.known)
        return self._found[size]

    def value(self, given: Any, mode: Any = None) -> Any:
        """Return what a node has: tensors with these sizes, of ``mode`` or else on the device meta, and no values."""
        import torch

        if isinstance(given, OpenTensor):
            # no open size is compared with a number: torch would take that for a condition
            shape, stride = tuple(map(self.number, given.shape)), tuple(map(self.number, given.stride))
            if mode is not None:
                with mode:
                    return torch.empty_strided(shape, stride, dtype=given.dtype)
            key = shape, stride, given.dtype
            if (known := self._tensors.get(key)) is None:
                known = self._tensors[key] = torch.empty_strided(shape, stride, dtype=given.dtype, device="meta")
            return known
        if isinstance(given, torch.Tensor):
            return given
        if isinstance(given, tuple | list):
            return type(given)(self.value(one, mode) for one in given)
        return self(given)


class OpenTensor(NamedTuple):
    """A tensor has open sizes: expressions, and numbers."""

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    dtype: Any


def opened(value: Any) -> Any:
    """Return the value of a node with ``OpenTensor`` for each tensor of open sizes; torch takes long to say them."""
    import torch

    if isinstance(value, torch.Tensor):
        sizes = (*value.shape, *value.stride())
        if all(isinstance(size, int) for size in sizes):
            return value
        numbers = tuple(size if isinstance(size, int) else size.node.expr for size in sizes)
        return OpenTensor(numbers[: value.dim()], numbers[value.dim() :], value.dtype)
    if type(value) in (tuple, list):
        return type(value)(map(opened, value))
    return value


class GraphAt:
    """It is written node by node from one with open sizes; nodes that compute sizes are numbers in it."""

    def __init__(self, sizes: Sizes, mode: Any = None) -> None:
        """Begin without nodes; ``mode`` as of ``Sizes.value``."""
        import torch

        self.sizes, self.mode, self.graph = sizes, mode, torch.fx.Graph()
        self.nodes: dict[Any, Any] = {}
        """Node -> that of this graph, or a number."""
        self._moving: list[tuple[Any, Any, bool]] = []
        """Nodes with values of open sizes, these, and whether their arguments have such, too."""

    def move(self, sizes: Sizes) -> None:
        """Put other sizes into the nodes that were copied."""
        from torch.fx import map_arg

        for node, given, has_sizes in self._moving:
            value, own = sizes.value(given, self.mode), self.nodes[node]
            if not hasattr(own, "meta"):  # a number
                self.nodes[node] = value
                continue
            own.meta["val"] = value
            if has_sizes:
                own.args, own.kwargs = map_arg((node.args, node.kwargs), self.nodes.__getitem__)

    def copy(self, node: Any, as_input: bool = False) -> None:
        """Copy a node behind those that it reads; ``as_input``: its value is given, whatever computes it."""
        from torch.fx import map_arg

        value = node.meta.get("val")
        if is_size(node):
            self.nodes[node] = self.sizes.value(value)
            self._moving.append((node, value, True))
            return
        if _name(node).startswith(("_assert_scalar", "sym_constrain")):
            return
        if node.op == "output":
            self.graph.output(map_arg(node.args[0], self.nodes.__getitem__))
            return
        kind, args, kwargs = node.op, node.args, node.kwargs
        if as_input and kind == "call_function":
            kind, args, kwargs = "placeholder", (), {}
        new = self.graph.create_node(
            kind,
            node.name if kind == "placeholder" else node.target,
            *map_arg((args, kwargs), self.nodes.__getitem__),
            name=node.name,
        )
        new.meta = {**node.meta, "val": self.sizes.value(value := opened(value), self.mode)}
        self.nodes[node] = new
        has_sizes = kind == "call_function" and any(map(is_size, node.all_input_nodes))
        if has_sizes or new.meta["val"] is not value:
            self._moving.append((node, value, has_sizes))


def is_size(node: Any) -> bool:
    """Return True for a node that computes a size, and no tensor."""
    value = node.meta.get("val")
    return node.op == "call_function" and value is not None and not tensors_in(value)


def _name(node: Any) -> str:
    return str(getattr(node.target, "__name__", "")) if node.op == "call_function" else ""


def _evaluated(expression: Any, known: Mapping[str, int]) -> Any:
    text, code = _compiled(expression)
    try:
        return eval(code, {"math": math}, dict(known))  # noqa: S307  # torch wrote it
    except Exception as error:
        raise CdmppError(f"the size {text} of an export cannot be evaluated: {first_line(error)}") from error


@lru_cache(maxsize=4096)
def _compiled(expression: Any) -> tuple[str, CodeType]:
    from torch.utils._sympy.printers import PythonPrinter

    text = PythonPrinter().doprint(expression)
    return text, compile(text, "<size>", "eval")
