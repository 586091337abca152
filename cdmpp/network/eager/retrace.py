"""A network that was exported, at other sizes of its inputs: its Python runs again, and no graph is made anew.

It runs on tensors without values, as an exporter lets it run, and each operator that it calls is noted. Where these are
the ones of the export, in the same order and on the results of the same ones, the graph of the other sizes is that of
the export with other numbers: those of the arguments that were noted. Where anything differs there is no answer, and
the network has to be exported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cdmpp.network.eager.divided import DividedExport
from cdmpp.network.eager.export_nodes import is_called, is_equal, is_part, is_same, part_of, renumbered
from cdmpp.network.eager.noted_calls import Call, Given, Noted, Result, Rule, UnlikeError, map_tensors, noting
from cdmpp.network.eager.per_example import at_other_batch
from cdmpp.network.eager.read import ExportedRun
from cdmpp.network.eager.sized_run import run_at
from cdmpp.network.eager.symbolic import shapes_of
from cdmpp.network.eager.without_values import hollow, runs
from cdmpp.programs.as_eager import as_eager
from cdmpp.programs.caches import register_caches
from cdmpp.programs.exported import without_collector
from cdmpp.programs.refusal import quiet
from cdmpp.programs.regions import flags_of
from cdmpp.programs.watch import watched


class Retrace:
    """It runs the Python of an exported network again.

    The first run is at the sizes of the export and has to call what the export has.
    """

    def __init__(self, run: ExportedRun, model: Any, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """Take an export.

        Args:
            run: of mode ``inference``.
            model: what was exported, as ``export`` took it, and so its ``inputs`` and ``options``.
            inputs: as there.
            options: as there.

        Raises:
            UnlikeError: it cannot be run again, or does not run what the export says.
        """
        self.run, self.model, self.options = run, model, options
        exported = run.exported
        if run.trains or run.network.precision.autocast or flags_of(exported) or options.get("boxes") is not None:
            raise UnlikeError("what it runs depends on more than its Python")
        self.nodes = [one for one in exported.graph.nodes if is_called(one)]
        self.names = [spec.arg.name for spec in exported.graph_signature.input_specs if _is_user(spec)]
        self.calls, results = self._traced(inputs, _Followed(self.nodes))
        if sum(call.node is not None for call in self.calls) != len(self.nodes):
            raise UnlikeError("the export has more operators")
        self.results = [self._node(one) for one in results]
        told = [spec.arg.name for spec in exported.graph_signature.output_specs if _is_user(spec)]
        if [getattr(one, "name", None) for one in self.results] != told or len(self._outputs) != len(told):
            raise UnlikeError("the export has other results")
        self.sources = results

    def at(self, inputs: tuple[Any, ...]) -> ExportedRun:
        """Return the run at other inputs, of which only shapes and types are looked at; ``UnlikeError``: no answer."""
        calls, results = self._traced(inputs, _Again(self.calls))
        if len(calls) != len(self.calls) or results != self.sources:
            raise UnlikeError("it has other operators or results")
        return run_at(self.run, self._program(calls, inputs), shapes_of(inputs))

    @cached_property
    def _outputs(self) -> list[Any]:
        return list(next(one for one in self.run.exported.graph.nodes if one.op == "output").args[0])

    def _node(self, source: Any) -> Any:
        if isinstance(source, Result):
            return part_of(self.calls[source.call].node, source.place)
        return self._placeholders.get(source.names[0]) if isinstance(source, Given) else None

    @cached_property
    def _placeholders(self) -> dict[str, Any]:
        return {one.name: one for one in self.run.exported.graph.nodes if one.op == "placeholder"}

    @cached_property
    def _weights(self) -> list[tuple[Any, tuple[str, ...]]]:
        """Yield each weight and buffer, and the nodes of the export that stand for it."""
        signature, names = self.run.exported.graph_signature, dict[str, list[str]]()
        for told in (signature.inputs_to_parameters, signature.inputs_to_buffers):
            for node, name in told.items():
                names.setdefault(name, []).append(node)
        found = dict[int, tuple[Any, list[str]]]()
        named = (self.model.named_parameters(remove_duplicate=False), self.model.named_buffers(remove_duplicate=False))
        for every in named:
            for name, tensor in every:
                found.setdefault(id(tensor), (tensor, []))[1].extend(names.get(name, ()))
        return [(tensor, tuple(nodes)) for tensor, nodes in found.values()]

    @without_collector()
    def _traced(self, inputs: tuple[Any, ...], rule: Rule) -> tuple[list[Call], list[Any]]:
        """Return the calls, and where each result comes from."""
        from torch.utils import _pytree

        noted = Noted(rule)
        for tensor, nodes in self._weights:
            noted.give(tensor, hollow(tensor), Given(nodes))
        leaves, structure = _pytree.tree_flatten(inputs)
        if len(leaves) != len(self.names):
            raise UnlikeError("the export has other inputs")
        fakes = [noted.input(one, name) for one, name in zip(leaves, self.names, strict=True)]
        options, kind = self.options, self.options.get("kind", "")
        try:
            with (
                quiet(),
                as_eager(options.get("imbalance", 1.0), None, kind) as said,
                watched(trains=False, kind=kind or None) as told,
                noting(noted),
            ):
                register_caches()
                found = self.model(*_pytree.tree_unflatten(fakes, structure))
        except UnlikeError:
            raise
        except Exception as error:
            raise UnlikeError(str(error)) from error
        if told or said.told or said.decided:
            raise UnlikeError("what it runs depends on more than its Python")
        return noted.calls, [noted.source(one) for one in _pytree.tree_leaves(found)]

    def _program(self, calls: Sequence[Call], inputs: tuple[Any, ...]) -> DividedExport:
        """Return what stands for the export at these inputs."""
        import torch
        from torch.fx import map_arg
        from torch.utils import _pytree

        exported = self.run.exported
        graph, nodes = torch.fx.Graph(), dict[Any, Any]()
        given = dict(zip(self.names, _pytree.tree_leaves(inputs), strict=True))
        pairs = {own.node: (own, new) for own, new in zip(self.calls, calls, strict=True) if own.node is not None}
        for node in exported.graph.nodes:
            if node.op == "output":
                graph.output(map_arg(node.args[0], nodes.__getitem__))
                continue
            value, args, kwargs = node.meta.get("val"), node.args, node.kwargs
            if node in pairs:
                own, new = pairs[node]
                value = _as(value, new.made)
                if not is_equal(own.given, new.given):
                    args, kwargs = renumbered(node, own.given, new.given)
            elif is_part(node):
                value = nodes[node.args[0]].meta["val"][node.args[1]]
            elif isinstance(given.get(node.name), torch.Tensor):
                value = hollow(given[node.name])
            target = node.name if node.op == "placeholder" else node.target
            args, kwargs = map_arg((args, kwargs), nodes.__getitem__) if node.op == "call_function" else ((), {})
            nodes[node] = graph.create_node(node.op, target, args, kwargs, name=node.name)
            nodes[node].meta = {**node.meta, "val": value}
        return DividedExport(graph, exported.graph_module, exported.graph_signature, exported.state_dict)


@dataclass(eq=False)
class _Followed:
    """The first run: results are those of the nodes of the export, which have to be called in their order."""

    nodes: Sequence[Any]
    done: int = 0
    called: list[Any] = field(default_factory=list)
    """The node of each call; None where the export has none."""

    def made(self, number: int, call: Call, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """As of ``Rule``: what nobody reads is not in the export."""
        node = self.nodes[self.done] if self.done < len(self.nodes) else None
        if node is None or node.target is not call.target or not is_same(node, call.given, self._names):
            self.called.append(None)
            return runs().run(call.target, args, kwargs), None
        self.done += 1
        self.called.append(node)
        return map_tensors(hollow, node.meta["val"]), node

    def _names(self, source: Result | Given) -> tuple[str, ...]:
        """Names of the nodes of the export that a tensor may be."""
        if isinstance(source, Given):
            return source.names
        return (getattr(part_of(self.called[source.call], source.place), "name", ""),)

    def leaves_out(self, number: int, target: Any) -> bool:
        """As of ``Rule``."""
        return self.done >= len(self.nodes) or self.nodes[self.done].target is not target


@dataclass(eq=False)
class _Again:
    """A run at other sizes, which has to make the calls of the first one."""

    calls: Sequence[Call]

    def leaves_out(self, number: int, target: Any) -> bool:
        """As of ``Rule``."""
        return number >= len(self.calls) or self.calls[number].target is not target

    def made(self, number: int, call: Call, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """As of ``Rule``: the same call of the same results, whatever the numbers."""
        own = self.calls[number] if number < len(self.calls) else None
        if own is None or own.target is not call.target or not is_alike(own, call):
            raise UnlikeError(f"{call.target} is called, which the export does not have there")
        found = at_other_batch(call.target, own.given, call.given, own.tensors, call.tensors, own.made)
        return (runs().run(call.target, args, kwargs) if found is None else found), own.node


def _is_user(spec: Any) -> bool:
    return spec.kind.name in ("USER_INPUT", "USER_OUTPUT")


def _as(value: Any, made: tuple[Any, ...]) -> Any:
    return type(value)(made) if isinstance(value, tuple | list) else made[0]


def is_alike(own: Call, call: Call) -> bool:
    """Return whether two calls read the same tensors, whatever the numbers."""
    if len(own.given) != len(call.given):
        return False
    for one, other in zip(own.given, call.given, strict=True):
        if isinstance(one, Result | Given) or isinstance(other, Result | Given):
            if one != other:
                return False
        elif type(one) is not type(other) or (type(one) not in (int, float) and not is_equal(one, other)):
            return False
    return True
