"""A run of inference at any sizes for which one export holds: only one node of each kind is looked at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cdmpp.network.eager.like_nodes import DEPTH, LikeNodes, NodeCall, by_node, like_nodes, node_of
from cdmpp.network.eager.read import EagerNetwork, ExportedRun
from cdmpp.network.eager.symbolic import Shapes, SymbolicExport, batch_in
from cdmpp.network.graph import Call
from cdmpp.operators.operator import EagerOperator

_Form = tuple[tuple[str, tuple[tuple[str, bool, bool], ...]], ...]
"""Node that stands for others -> of each of its calls what it stands for, whether it writes, whether it is joined."""


def run_at(run: ExportedRun, program: Any, shapes: Shapes) -> ExportedRun:
    """Return a run with another export of its network, at inputs of these shapes."""
    tokens = None if run.tokens is None else math.prod(shapes[0])
    return replace(run, exported=program, batch=batch_in(shapes), tokens=tokens)


class SizedRun:
    """It reads the calls of a network at sizes of its inputs.

    Where the calls of a node are others in number or kind than at sizes that were read before, all of the graph is read
    at these sizes, and serves for those that are like them.
    """

    def __init__(self, exported: ExportedRun, symbolic: SymbolicExport, shapes: Shapes) -> None:
        """Read the network at the shapes of inputs that it was exported at."""
        self.exported, self.symbolic = exported, symbolic
        read = self._whole(shapes)
        self.like = self._checked(read, shapes)
        self._whole_reads = dict[_Form, EagerNetwork]()
        if self.like is not None:
            self._whole_reads[self._form(self._sample(self.like, shapes))] = read

    def at(self, shapes: Shapes) -> EagerNetwork:
        """Read the calls at other shapes of inputs, for which the export has to hold."""
        if self.like is None:
            return self._whole(shapes)
        sample = self._sample(self.like, shapes)
        form = self._form(sample)
        if form not in self._whole_reads:
            self._whole_reads[form] = self._whole(shapes)
        return self._resized(self._whole_reads[form], sample, shapes)

    def _whole(self, shapes: Shapes) -> EagerNetwork:
        return run_at(self.exported, self.symbolic.at(shapes), shapes).read()

    def _sample(self, like: LikeNodes, shapes: Shapes) -> dict[str, list[NodeCall]]:
        return by_node(run_at(self.exported, like.at(shapes), shapes).read())

    def _checked(self, read: EagerNetwork, shapes: Shapes) -> LikeNodes | None:
        """The nodes that stand for all others, if they have the calls of these; None if they never do."""
        if read.alive_bytes is not None:  # it is of the whole graph
            return None
        for depth in range(DEPTH + 1):
            like = like_nodes(self.symbolic, depth)
            sample = self._sample(like, shapes)
            if all(
                list(map(_compared, calls)) == list(map(_compared, sample.get(like.stands_for.get(name, ""), ())))
                for name, calls in by_node(read).items()
            ):
                return like
        return None

    def _form(self, sample: Mapping[str, Sequence[NodeCall]]) -> _Form:
        return tuple(
            (name, tuple((one.stands_for, one.call.output_bytes > 0, one.call.is_joined) for one in calls))
            for name, calls in sample.items()
        )

    def _resized(self, read: EagerNetwork, sample: Mapping[str, Sequence[NodeCall]], shapes: Shapes) -> EagerNetwork:
        assert self.like is not None
        inputs, operators, calls = self._input_bytes(shapes), dict[str, EagerOperator](), list[Call]()
        seen = dict[str, int]()
        for call in read.graph.calls:
            name = node_of(call)
            own = sample[self.like.stands_for[name]][seen.get(name, 0)]
            seen[name] = seen.get(name, 0) + 1
            operators.setdefault(own.call.task_id, own.operator)
            resident = call.resident
            if any(number in inputs for number, _ in resident):
                resident = tuple((number, inputs.get(number, size)) for number, size in resident)
            calls.append(replace(own.call, name=call.name, inputs=call.inputs, resident=resident))
        graph = replace(read.graph, calls=tuple(calls), tasks={}, input_bytes=sum(inputs.values()))
        return replace(read, graph=graph, operators=operators, batch=batch_in(shapes))

    def _input_bytes(self, shapes: Shapes) -> dict[int, int]:
        """Number of an input, as in ``Call.resident`` -> its bytes."""
        nodes = [node for node in self.symbolic.exported.graph.nodes if node.op == "placeholder"]
        return {
            number: math.prod(shapes[place]) * node.meta["val"].dtype.itemsize
            for number, node in enumerate(nodes)
            if (place := self.symbolic.places.get(node)) is not None and hasattr(node.meta.get("val"), "dtype")
        }


def _compared(one: NodeCall) -> tuple[EagerOperator, Call, str]:
    return one.operator, replace(one.call, name="", inputs=(), resident=()), one.stands_for
