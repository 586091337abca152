"""A run of inference at any sizes for which one export holds: only one node of each kind is looked at."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cdmpp.network.eager.eager_network import EagerNetwork
from cdmpp.network.eager.like_nodes import DEPTH, LikeNodes, NodeCall, by_node, like_nodes, node_of
from cdmpp.network.eager.read import ExportedRun
from cdmpp.network.eager.symbolic import Shapes, SymbolicExport, batch_in
from cdmpp.network.liveness import CallBytes, Lifetimes
from cdmpp.operators.operator import EagerOperator
from cdmpp.operators.operator_task import task_id

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
        self._wholes = dict[_Form, _Whole]()
        if self.like is not None:
            self._wholes[self._form(self._sample(self.like, shapes))] = _Whole.of(
                read, self.like, self._input_bytes(shapes)
            )

    def at(self, shapes: Shapes) -> EagerNetwork:
        """Read the calls at other shapes of inputs, for which the export has to hold."""
        if self.like is None:
            return self._whole(shapes)
        sample = self._sample(self.like, shapes)
        form = self._form(sample)
        if form not in self._wholes:
            self._wholes[form] = _Whole.of(self._whole(shapes), self.like, self._input_bytes(shapes))
        return self._resized(self._wholes[form], sample, shapes)

    def _whole(self, shapes: Shapes) -> EagerNetwork:
        return run_at(self.exported, self.symbolic.at(shapes), shapes).read()

    def _sample(self, like: LikeNodes, shapes: Shapes) -> dict[str, list[NodeCall]]:
        return like.calls_at(shapes, self.exported)

    def _checked(self, read: EagerNetwork, shapes: Shapes) -> LikeNodes | None:
        """The nodes that stand for all others, if they have the calls of these; None if they never do."""
        if read.alive_bytes is not None:  # it is of the whole graph
            return None
        for depth in range(DEPTH + 1):
            like = like_nodes(self.symbolic, depth)
            sample = self._sample(like, shapes)
            if all(calls == sample.get(like.stands_for.get(name, "")) for name, calls in by_node(read).items()):
                return like
        return None

    def _form(self, sample: Mapping[str, Sequence[NodeCall]]) -> _Form:
        return tuple(
            (name, tuple((one.stands_for, one.output_bytes > 0, one.is_joined) for one in calls))
            for name, calls in sample.items()
        )

    def _resized(self, whole: _Whole, sample: Mapping[str, Sequence[NodeCall]], shapes: Shapes) -> EagerNetwork:
        inputs, operators, read = self._input_bytes(shapes), dict[str, EagerOperator](), whole.read
        own = [[(_id_of(one.operator, operators), one.output_bytes) for one in sample[name]] for name in whole.names]
        calls = []
        for call, (node, index) in zip(read.graph.calls, whole.places, strict=True):
            calls.append(call.at_other_sizes(*own[node][index]))
        for place in whole.of_inputs:
            resident = tuple((number, inputs.get(number, size)) for number, size in calls[place].resident)
            calls[place] = replace(calls[place], resident=resident)
        graph = replace(read.graph, calls=tuple(calls), tasks={}, input_bytes=sum(inputs.values()))
        sizes, none = np.array([one.output_bytes for one in calls], np.int64), np.zeros(len(calls), np.int64)
        during, _ = whole.lifetimes.alive(CallBytes(sizes, sizes, sizes, sizes, none, sizes), read.graph.results)
        alive = int(during.max(initial=0))
        return replace(read, graph=graph, operators=operators, batch=batch_in(shapes), alive_bytes=alive)

    def _input_bytes(self, shapes: Shapes) -> dict[int, int]:
        """Number of an input, as in ``Call.resident`` -> its bytes."""
        return {number: math.prod(shapes[place]) * size for number, place, size in self._inputs}

    @cached_property
    def _inputs(self) -> list[tuple[int, int, int]]:
        """Number of each input, its place among the leaves, and the bytes of an element."""
        nodes = [node for node in self.symbolic.exported.graph.nodes if node.op == "placeholder"]
        return [
            (number, place, node.meta["val"].dtype.itemsize)
            for number, node in enumerate(nodes)
            if (place := self.symbolic.places.get(node)) is not None and hasattr(node.meta.get("val"), "dtype")
        ]


@dataclass(frozen=True, eq=False)
class _Whole:
    """All of a graph, read once, and the nodes that stand for those of its calls."""

    read: EagerNetwork
    names: tuple[str, ...]
    """Nodes that stand for others."""
    places: tuple[tuple[int, int], ...]
    """Place of one of those nodes for each call, and which of its calls it is."""
    of_inputs: tuple[int, ...]
    """Places of the calls that read inputs of the network."""
    lifetimes: Lifetimes

    @staticmethod
    def of(read: EagerNetwork, like: LikeNodes, inputs: Collection[int]) -> _Whole:
        names, places, seen = dict[str, int](), list[tuple[int, int]](), Counter[str]()
        for call in read.graph.calls:
            name = node_of(call)
            places.append((names.setdefault(like.stands_for[name], len(names)), seen[name]))
            seen[name] += 1
        calls = read.graph.calls
        lifetimes = Lifetimes.of(calls, [(place, False) for place in range(len(calls))])
        reading = [place for place, call in enumerate(calls) if any(number in inputs for number, _ in call.resident)]
        return _Whole(read, tuple(names), tuple(places), tuple(reading), lifetimes)


def _id_of(operator: EagerOperator, operators: dict[str, EagerOperator]) -> str:
    operators.setdefault(key := task_id(operator), operator)
    return key
