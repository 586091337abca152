"""Loops of an ONNX graph as their rounds: a graph of its own for each, with names that no other has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from cdmpp.network.source.onnx_file import node_name

MOST_ROUNDS = 256
"""Loops of more rounds are refused: each is read by itself."""


@dataclass(eq=False)
class Round:
    """This is one round of a loop."""

    place: int
    number: str
    """Name of the value that says which round it is."""
    goes: str
    """Name of the value that says that it runs."""
    given: list[tuple[str, str]]
    """Names of what is carried from round to round, and of the values that they have at its begin."""
    graph: Any
    condition: str
    """Name of the value that says whether another round follows."""
    is_last: bool = False

    def goes_on(self, condition: bool) -> None:
        """Say whether another round follows."""
        self.is_last = not condition


@dataclass(eq=False)
class Rounds:
    """Rounds follow one another while they are asked for; results are known behind the last."""

    proto: Any
    most: int
    runs: bool
    refuse: Callable[[str], NoReturn]
    results: list[tuple[str, str]] = field(default_factory=list)
    """Names of the loop's carried results, and of the values that they are."""
    gathered: list[tuple[str, list[str]]] = field(default_factory=list)
    """Names of results that have one element a round, and of these."""

    def __iter__(self) -> Iterator[Round]:
        """Yield the rounds that run."""
        body = next(one.g for one in self.proto.attribute if one.name == "body")
        carried, many = list(self.proto.input[2:]), len(self.proto.input) - 2
        gathered: list[list[str]] = [[] for _ in self.proto.output[many:]]
        for place in range(self.most if self.runs else 0):
            if place == MOST_ROUNDS:
                self.refuse(f"has more than {MOST_ROUNDS} rounds")
            graph = _renamed(body, f"{node_name(self.proto)}_{place}_")
            names = [value.name for value in graph.input]
            one = Round(
                place, names[0], names[1], list(zip(names[2:], carried, strict=True)), graph, graph.output[0].name
            )
            yield one
            results = [value.name for value in graph.output[1:]]
            carried = results[:many]
            for parts, name in zip(gathered, results[many:], strict=True):
                parts.append(name)
            if one.is_last:
                break
        self.results = [(name, own) for name, own in zip(self.proto.output, carried, strict=False) if name]
        self.gathered = [(name, own) for name, own in zip(self.proto.output[many:], gathered, strict=True) if name]
        if any(not own for _, own in self.gathered):
            self.refuse("has no rounds, so its results have no elements")


def unrolled(proto: Any, limit: Any, condition: Any, refuse: Callable[[str], NoReturn]) -> Rounds:
    """Return the rounds of a loop.

    Args:
        proto: ``onnx.NodeProto`` of a ``Loop``.
        limit: array of its largest number of rounds; None: there is none.
        condition: array that says whether there is a first round; None: there is.
        refuse: is called with what cannot be read.
    """
    most = MOST_ROUNDS + 1 if limit is None else int(limit.reshape(-1)[0])
    return Rounds(proto, most, condition is None or bool(condition.reshape(-1)[0]), refuse)


def _renamed(graph: Any, prefix: str) -> Any:
    """Copy a graph; what it defines gets a prefix, in the graphs inside it, too."""
    import onnx

    made = onnx.GraphProto()
    made.CopyFrom(graph)
    _rename(made, {}, prefix)
    return made


def _rename(graph: Any, outer: dict[str, str], prefix: str) -> None:
    own = [value.name for value in (*graph.input, *graph.initializer)]
    own += [name for node in graph.node for name in node.output if name]
    names = outer | {name: prefix + name for name in own}
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.name = prefix + (node.name or node.op_type)
        for of in (node.input, node.output):
            of[:] = [names.get(name, name) for name in of]
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _rename(inner, names, prefix)
