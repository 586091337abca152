"""The graph of one rank among several that divide the operators of a network, written from the graph of the whole one.

A strategy copies an exported graph node by node, with the shapes that one rank has, and puts exchanges between nodes.
What comes out is read as any exported graph is: operators at their divided sizes, and what autograd keeps of them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.eager.without_values import hollow, runs
from cdmpp.network.training_step import StepCall
from cdmpp.operators.aten import name_of, place_of_node
from cdmpp.operators.aten_convolution import CONVOLUTIONS, Convolution, geometry_of
from cdmpp.operators.aten_layout import tensors_in
from cdmpp.programs.refusal import first_line
from cdmpp.programs.regions import has_gradient

ROLE, WEIGHT_PART, RETURNS = "cdmpp_role", "cdmpp_part", "cdmpp_returns"
"""Keys in the ``meta`` of a node: what the ranks do there together; the axis along which a weight is divided; the node
as large as the copy that its gradient runs, where that is not as large as the node itself."""
COPIED = "cdmpp_copied"
"""Key in the ``meta`` of a node that is a copy: the node as large as what it copies, where that is larger."""
ROLES, WEIGHT_PARTS = "cdmpp_roles", "cdmpp_parts"
"""Keys in the ``meta`` of a node of a ``DividedExport``: degree -> role, and degree -> axis."""
_OWN = (ROLE, WEIGHT_PART, RETURNS, COPIED, ROLES, WEIGHT_PARTS)
"""Keys that only the node itself has, and nothing that is put next to it."""


@dataclass(frozen=True)
class NodeExchange:
    """Ranks exchange this next to a node."""

    kind: str
    """A key of ``collective.KINDS``."""
    bytes: int
    """Counted as there; of a halo the message from one rank to its neighbour."""
    node: str
    """Name of the node of the divided graph that it belongs to."""
    when: str
    """``before`` the node runs, ``after`` it ran; ``before gradient``: before the gradient of its first input is made,
    ``after gradient``: after that; ``after gradients``: after those of its weights too; ``inside`` it, or ``inside
    gradients``, where it runs several calls; ``update``: between the passes and the update, as often as the optimizer
    reads the gradient of the parameter that the node is; ``update once``: there once;
    ``beside`` the node or ``beside gradient`` of its first input: at the same time, for whose readers to wait."""
    name: str
    """Title for a reader."""
    shift: int = 0
    """Each rank of a ``send_recv`` sends to the one so many places further."""
    span: int = 0
    """Ranks of a ``send_recv`` stand in rows of so many, beyond which none sends; 0: all in one row."""
    of: str = ""
    """Name of the node of the divided graph whose value, or its gradient, is exchanged: if a further division makes
    that smaller, the bytes go with it. Empty: of ``node``, or after its gradient of its first input."""
    degree: str = ""
    """The ranks along this parallel degree take part; empty until the division is done."""
    at: tuple[int, int] = (0, 0)
    """An exchange inside has two calls, the one that launches it and the one that waits, both counted from behind the
    last. 0: the readers of its result wait."""
    is_ring: bool = False
    """True if the last rank of a row sends to the first one, too."""
    in_order: bool = False
    """True if one before a node, or its gradient, leaves when it is that one's turn; else once what it reads exists."""
    blocks: bool = False
    """True if nothing else runs from its begin to its end."""


@dataclass(frozen=True, eq=False)
class DividedExport:
    """It stands for an ``ExportedProgram``: what one rank runs. It can be divided again along another degree."""

    graph: Any
    graph_module: Any
    graph_signature: Any
    state_dict: Mapping[str, Any]
    exchanges: tuple[NodeExchange, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Name of a parameter that is divided -> its shape on one rank."""
    warnings: tuple[str, ...] = ()
    apart: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name of a parameter -> degrees along which ranks have batches of their own, and other parts of it."""
    meshes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name of a parameter -> degrees along which the framework has it as one tensor."""
    tensors: frozenset[str] = frozenset()
    """Names of those that it has as one tensor along the degree of this division."""

    def along(self, degree: str, before: Any, has_batches: bool = False) -> DividedExport:
        """Return the same as a division of ``before`` along ``degree``, whose ranks may have batches of their own."""
        for node in self.graph.nodes:
            for one, every in ((ROLE, ROLES), (WEIGHT_PART, WEIGHT_PARTS)):
                if one in node.meta:
                    node.meta[every] = {**node.meta.get(every, {}), degree: node.meta.pop(one)}
        known, apart = getattr(before, "shapes", {}), {**getattr(before, "apart", {})}
        for name, shape in self.shapes.items() if has_batches else ():
            if known.get(name) != shape:
                apart[name] = (*apart.get(name, ()), degree)
        exchanges = tuple(replace(one, degree=one.degree or degree) for one in self.exchanges)
        meshes = {**self.meshes, **{name: (*self.meshes.get(name, ()), degree) for name in self.tensors}}
        return replace(self, exchanges=exchanges, apart=apart, meshes=meshes, tensors=frozenset())


class LocalGraph:
    """It is written node by node; each new node has the value that one rank computes, without its numbers."""

    def __init__(self, exported: Any) -> None:
        """Begin with an ``ExportedProgram``, or what stands for it, which is left as it is."""
        import torch

        self.exported, self.graph = exported, torch.fx.Graph()
        self.parameters = exported.graph_signature.inputs_to_parameters
        self.runs = runs()
        self.nodes: dict[Any, Any] = {}
        """Node of the whole graph -> the one of this rank that its readers read."""
        self.own: dict[Any, Any] = {}
        """Node of the whole graph -> the one that does the same on this rank."""
        self.learns = set[Any]()
        """New nodes whose values depend on a trained parameter."""
        self.exchanges: list[NodeExchange] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.tensors = set[str]()
        """Names of parameters that the framework has as one tensor along the degree."""
        self.warnings: list[str] = []

    def placeholder(self, old: Any, shape: Sequence[int] | None = None, axis: int | None = None) -> Any:
        """Copy an input or a parameter, of another shape where one is given; ``axis``: along which it is divided."""
        import torch

        new = self.graph.create_node("placeholder", old.target, name=old.name)
        value, parameter = old.meta.get("val"), self.parameters.get(old.name)
        if isinstance(value, torch.Tensor) and not (shape is None and self.runs.made(value)):
            value = hollow(value) if shape is None else torch.empty(tuple(shape), dtype=value.dtype, device="meta")
        if parameter is not None and shape is not None:
            self.shapes[parameter] = tuple(shape)
        if parameter is not None and self.exported.state_dict[parameter].requires_grad:
            self.learns.add(new)
        own = {} if axis is None else {WEIGHT_PART: axis}
        return self._done(old, new, {**old.meta, "val": value, **own})

    def copy(self, old: Any, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None) -> Any:
        """Copy a node with the new nodes of its arguments, or with other ``args`` and ``kwargs``."""
        import torch

        if old.op == "output":
            return self._done(old, self.graph.output(torch.fx.map_arg(old.args[0], self.nodes.__getitem__)), old.meta)
        if old.op == "get_attr":
            value = operator.attrgetter(old.target)(self.exported.graph_module)
            value = hollow(value) if isinstance(value, torch.Tensor) else value
            new = self.graph.create_node("get_attr", old.target, name=old.name)
            return self._done(old, new, {**old.meta, "val": value})
        own = self.arguments(old)
        args, kwargs = own[0] if args is None else tuple(args), own[1] if kwargs is None else dict(kwargs)
        return self._done(old, self.call(old.target, args, kwargs, old, old.name), None)

    def arguments(self, old: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a node of the whole graph, with the new nodes in place of the old ones."""
        from torch.fx import map_arg

        return map_arg(old.args, self.nodes.__getitem__), map_arg(old.kwargs, self.nodes.__getitem__)

    def value(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], like: Any) -> Any:
        """Return what a call gives, without numbers; ``CdmppError`` names ``like`` where it cannot run."""
        from torch.fx import map_arg

        try:
            return self.runs.run(target, *map_arg((tuple(args), dict(kwargs)), lambda node: node.meta["val"]))
        except Exception as error:
            raise CdmppError(
                f"{name_of(like)} ({like.name}{place_of_node(like)}) cannot run on a part of what it reads: "
                f"{first_line(error)}"
            ) from error

    def call(
        self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], like: Any, name: str = "", value: Any = None
    ) -> Any:
        """Add a call; it stands in the same place of the model as the node ``like`` of the whole graph.

        With a ``name`` it does what ``like`` does. ``value``: what it gives, where that is known. ``CdmppError``: it
        cannot run on what one rank has.
        """
        value = self.value(target, args, kwargs, like) if value is None else value
        new = self.graph.create_node("call_function", target, tuple(args), dict(kwargs), name=name or None)
        meta = like.meta if name else {key: one for key, one in like.meta.items() if key not in _OWN}
        new.meta = {**meta, "val": value}
        if name:
            self.own[like] = new
        for key in (RETURNS, COPIED):
            if key in new.meta:
                new.meta[key] = self.own[new.meta[key]]
        if any(one in self.learns for one in new.all_input_nodes) and has_gradient(new):
            self.learns.add(new)
        return new

    def exchange(
        self, kind: str, node: Any, when: str, size: int, title: str, shift: int = 0, span: int = 0, of: Any = None,
        **others: Any,
    ) -> None:  # fmt: skip
        """Note an exchange of ``size`` bytes next to a new node; none without bytes.

        ``of`` is the new node whose value, or its gradient, is exchanged; None: as ``NodeExchange.of`` says, and so do
        ``others``.
        """
        if size:
            named = "" if of is None else of.name
            self.exchanges.append(NodeExchange(kind, size, node.name, when, title, shift, span, named, **others))

    def done(self) -> DividedExport:
        """Return the graph that was written, with the exchanges of earlier divisions."""
        exported = self.exported
        shapes, warnings = getattr(exported, "shapes", {}), getattr(exported, "warnings", ())
        return DividedExport(
            self.graph, exported.graph_module, exported.graph_signature, exported.state_dict,
            (*self._carried(), *self.exchanges), {**shapes, **self.shapes}, (*warnings, *self.warnings),
            getattr(exported, "apart", {}), getattr(exported, "meshes", {}), frozenset(self.tensors),
        )  # fmt: skip

    def _carried(self) -> Iterator[NodeExchange]:
        """Exchanges of earlier divisions, next to the nodes that do now what theirs did."""
        earlier = getattr(self.exported, "exchanges", ())
        named = {node.name: node for node in self.exported.graph.nodes} if earlier else {}
        for one in earlier:
            old, of = named[one.node], named[one.of or one.node]
            if old not in self.own or of not in self.own:
                raise CdmppError(f"{one.name}, along {one.degree}, is of an operator that another division replaces")
            pair = of, self.own[of]
            if not one.of and one.when.startswith("after gradient"):
                pair = old.all_input_nodes[0], self.own[old].all_input_nodes[0]
            before, now = (bytes_of_value(each.meta["val"]) for each in pair)
            name = self.own[of].name if one.of else ""
            yield replace(one, bytes=part(one.bytes * now, before), node=self.own[old].name, of=name)

    def _done(self, old: Any, new: Any, meta: dict[str, Any] | None) -> Any:
        if meta is not None:
            new.meta = meta
        self.nodes[old] = self.own[old] = new
        return new


def bytes_of_value(value: Any) -> int:
    """Return the bytes of all tensors of a node's value."""
    return sum(one.numel() * one.dtype.itemsize for one in tensors_in(value))


def part(size: int, ranks: int) -> int:
    """Return the largest part where ``size`` is divided as evenly as can be."""
    return -(-size // ranks)


def title_of(node: Any) -> str:
    """Name a node of the whole graph as the model does, such as ``layer1.0.conv2``."""
    stack = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    return (
        path.removeprefix("L['self'].").removeprefix("model.").removeprefix("inner.").removeprefix("inner.")
        or node.name
    )


def smallest(sizes: Iterable[tuple[int, str]]) -> tuple[int, str]:
    """Return the smallest size and the name of its first node; ``(1, "")`` where there is none."""
    return min(sizes, key=lambda one: one[0], default=(1, ""))


def convolutions(exported: Any) -> list[tuple[Any, Convolution]]:
    """List the convolutions of a graph, but transposed ones, with their arguments."""
    return [(node, one) for node in exported.graph.nodes if (one := convolution_at(node)) is not None]


def convolution_at(node: Any) -> Convolution | None:
    """Return the arguments of a convolution; None where a node is none, or a transposed one."""
    if node.op != "call_function" or name_of(node) not in CONVOLUTIONS:
        return None
    found = geometry_of(node, name_of(node))
    return None if found.is_transposed else found


def gathered(local: LocalGraph, old: Any, new: Any, axis: int) -> Any:
    """Let every rank have what node ``old`` of the whole graph gives, of which ``new`` is its part along an axis.

    The ranks' parts lie one behind the other as they arrive, and are copied into their places. Of the gradient of the
    whole each rank copies its part.
    """
    import torch

    whole, own = old.meta["val"].shape[axis], new.meta["val"].shape[axis]
    parts = [new] * (whole // own)
    if rest := whole % own:
        parts.append(local.call(torch.ops.aten.slice.Tensor, (new, axis, 0, rest), {}, old))
    cat = local.call(torch.ops.aten.cat.default, (parts, axis), {}, old)
    cat.meta |= {ROLE: ("gather", axis), RETURNS: new}
    local.exchange("all_gather", cat, "before", bytes_of_value(cat.meta["val"]), f"{title_of(old)} output")
    local.nodes[old] = cat
    return cat


def sliced(local: LocalGraph, old: Any, x: Any, size: int, axis: int) -> Any:
    """Copy the part of ``x`` along an axis that node ``old`` reads on one rank; of its gradient it copies all."""
    import torch

    view = local.call(torch.ops.aten.slice.Tensor, (x, axis, 0, size), {}, old)
    view.meta[ROLE] = ("slice", axis)
    own = local.call(torch.ops.aten.contiguous.default, (view,), {}, old)
    own.meta[RETURNS] = x
    return own


@dataclass(frozen=True)
class CallExchange:
    """It is a ``NodeExchange`` between calls of a training step."""

    kind: str
    bytes: int
    after: int
    """Place of the call that must have ended; -1: from the start on."""
    before: tuple[int, ...]
    """Places of the calls that wait for it."""
    name: str
    shift: int = 0
    span: int = 0
    degree: str = ""
    is_ring: bool = False
    follows: bool = False
    """True if it waits for the end of the exchange before it, which is along another degree and between the same
    calls."""


def placed(
    exchanges: Iterable[NodeExchange], places: Mapping[str, tuple[int, int]], calls: Sequence[StepCall]
) -> tuple[CallExchange, ...]:
    """Put exchanges between the calls of a step, in the order in which they can begin.

    What ``torch.utils.checkpoint`` runs again exchanges again. A node that runs nothing has no exchange.

    Args:
        exchanges: next to nodes.
        places: name of a node -> its first and its last call.
        calls: all calls of the step.
    """
    again: dict[int, list[int]] = {}
    gradients: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    for place, call in enumerate(calls):
        for source in call.call.inputs:
            readers.setdefault(source, []).append(place)
        if call.call.forward is not None:
            (again if call.is_recomputed else gradients).setdefault(call.call.forward, []).append(place)
    found: list[tuple[bool, int, CallExchange]] = []
    for number, one in enumerate(exchanges):
        if one.node not in places:
            continue
        first, last = places[one.node]
        made: list[tuple[int, tuple[int, ...]]]
        if one.when == "before":
            each = (first, *again.get(first, ()))
            made = [(p - 1 if one.in_order else max(calls[p].call.inputs, default=-1), (p,)) for p in each]
        elif one.when == "after":
            made = [(p, _of_phase(readers.get(p, ()), calls, calls[p].phase)) for p in (last, *again.get(last, ()))]
        elif one.when.startswith("inside"):
            inside = range(first, last + 1)
            twice = (gradients,) if one.when == "inside gradients" else (None, again)
            made = _inside(one.at, inside, twice, readers, calls)
        elif one.when == "beside":
            made = [(first - 1, _of_phase(readers.get(last, ()), calls, calls[first].phase))]
        elif first not in gradients:
            continue
        else:
            made = [_beside_gradient(one, gradients[first], readers, calls)]
        if one.blocks:
            made = [(after, _with_next(after, before, calls)) for after, before in made]
        order = one.when.startswith("before")
        number = -number if "gradient" in one.when else number  # what was made last is differentiated first
        found += [
            (
                order,
                number,
                CallExchange(
                    one.kind, one.bytes, after, before, one.name, one.shift, one.span, one.degree, one.is_ring
                ),
            )
            for after, before in made
        ]
    every = [one for *_, one in sorted(found, key=lambda own: (own[2].after, own[0], own[1]))]
    return tuple(
        replace(one, follows=True) if place and _is_next(every[place - 1], one) else one
        for place, one in enumerate(every)
    )


def _beside_gradient(
    one: NodeExchange, own: Sequence[int], readers: Mapping[int, Sequence[int]], calls: Sequence[StepCall]
) -> tuple[int, tuple[int, ...]]:
    """Return the call behind which an exchange leaves, and those that wait for it; ``own`` make a node's gradients."""
    if one.when == "before gradient":
        given = _of_phase(calls[own[0]].call.inputs, calls, "backward")
        return own[0] - 1 if one.in_order else max(given, default=own[0] - 1), (own[0],)
    if one.when == "beside gradient":
        return own[0] - 1, _of_phase([place for place in readers.get(own[0], ()) if place > own[0]], calls, "backward")
    own = own[:1] if one.when == "after gradient" else own
    read = sorted({place for of in own for place in readers.get(of, ()) if place > own[-1]})
    return own[-1], _of_phase(read, calls, "backward")


def _with_next(after: int, before: tuple[int, ...], calls: Sequence[StepCall]) -> tuple[int, ...]:
    """Let what runs behind call ``after`` wait too, if it is of the same phase as what waits anyway."""
    behind = after + 1
    is_same = bool(before) and behind < len(calls) and calls[behind].phase == calls[before[0]].phase
    return tuple(sorted({*before, behind})) if is_same else before


def _inside(
    at: tuple[int, int],
    inside: Sequence[int],
    ways: Iterable[Mapping[int, Sequence[int]] | None],
    readers: Mapping[int, Sequence[int]],
    calls: Sequence[StepCall],
) -> list[tuple[int, tuple[int, ...]]]:
    """List the calls that launch an exchange inside a node, and those that wait for it.

    Args:
        at: as ``NodeExchange.at``.
        inside: the calls of the node.
        ways: call of the node -> calls that are meant in its place, each a run of the node; None: the calls themselves.
        readers: call -> those that read its result.
        calls: all calls of the step.
    """
    found = list[tuple[int, tuple[int, ...]]]()
    for way in ways:
        own = list(inside) if way is None else sorted(p for place in inside for p in way.get(place, ()))
        if len(own) < -min(at):
            continue
        after = own[at[0]]
        read = {place for of in own for place in readers.get(of, ()) if place > own[-1]}
        found.append((after, (own[at[1]],) if at[1] < 0 else _of_phase(sorted(read), calls, calls[after].phase)))
    return found


def _is_next(first: CallExchange, one: CallExchange) -> bool:
    """Return True if nothing runs between two exchanges of different ranks, so that one waits for the other."""
    return first.after == one.after and first.degree != one.degree and bool({*first.before} & {*one.before})


def _of_phase(places: Iterable[int], calls: Sequence[StepCall], phase: str) -> tuple[int, ...]:
    return tuple(place for place in places if calls[place].phase == phase)
