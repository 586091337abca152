"""PartitionGraph: the layers of a network, what they read from each other and what a cut between them costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import DataError
from cdmpp.plans.cut_places import CutPlaces, result_bytes
from cdmpp.steps.step_graph import RankGraph


@dataclass(frozen=True)
class Layer:
    """A layer is an op of the forward pass with all that it runs in the backward pass. It is never divided."""

    name: str
    inputs: tuple[int, ...] = ()
    """Places of the earlier layers whose results it reads."""
    output_bytes: int = 0
    """Bytes of its result, which are sent where a later stage reads it."""
    has_gradient: bool = True
    """True if the gradient of its result is sent back."""
    saved_bytes: int = 0
    """Bytes of what its forward pass leaves for its backward pass."""
    work_bytes: int = 0
    """Bytes that it holds only while it runs."""


@dataclass(frozen=True)
class Parameter:
    """A parameter lies on each stage that has one of its readers."""

    name: str
    bytes: int
    readers: tuple[int, ...]
    """Places of the layers that read it; several for a tied parameter."""


@dataclass(frozen=True)
class PartitionGraph:
    """Layers stand in an order in which each comes after those that it reads."""

    layers: tuple[Layer, ...]
    parameters: tuple[Parameter, ...] = ()
    input_bytes: int = 0
    """Bytes of one micro-batch of examples, which the first stage keeps while they are under way."""
    groups: tuple[int, ...] = ()
    """Number of the group of each layer; layers of a group are never cut apart. Empty: each is a group."""

    def __post_init__(self) -> None:
        if not self.layers:
            raise DataError("a network without layers: give one or more")
        for place, one in enumerate(self.layers):
            if any(not 0 <= other < place for other in one.inputs):
                raise DataError(f"layer {one.name!r} reads {one.inputs}: expected places of earlier layers")
        for read in self.parameters:
            if not read.readers or any(not 0 <= place < len(self.layers) for place in read.readers):
                raise DataError(f"parameter {read.name!r} is read by {read.readers}: expected places of layers")
        if self.groups and len(self.groups) != len(self.layers):
            raise DataError(f"{len(self.groups)} groups for {len(self.layers)} layers: give one for each")

    @classmethod
    def of(cls, rank: RankGraph, input_bytes: int = 0) -> PartitionGraph:
        """Read the forward pass of a rank, with what belongs to each of its ops.

        An op that reads nothing and that nobody reads, such as the counter of a batch norm, stays with the next one.

        Raises:
            CdmppError: nothing says which op of the backward pass belongs to which of the forward pass.
        """
        on = CutPlaces(rank)
        numbers = {place: number for number, place in enumerate(on.forward)}
        read_again = {one for op in rank.ops if op.phase == "backward" for one in op.inputs}
        makes = {one.ready_after for one in rank.gradients}
        layers = []
        for place in on.forward:
            op, size = rank.ops[place], result_bytes(rank.ops[place])
            saved = op.output_bytes if op.saved_bytes is None else op.saved_bytes
            backward = [rank.ops[one] for one in on.backward_of.get(place, ()) if one not in makes]
            work = max((one.output_bytes + one.workspace_bytes + size for one in backward), default=0)
            inputs = tuple(numbers[one] for one in dict.fromkeys(op.inputs))
            saved = saved if place in read_again else 0
            work = max(work, op.workspace_bytes)
            layers.append(Layer(op.name, inputs, size, place in on.trained, saved, work))
        parameters = tuple(
            Parameter(one.name, one.bytes, tuple(sorted({numbers[place] for place in one.readers})))
            for one in rank.gradients
            if one.readers
        )
        read = {source for one in layers for source in one.inputs} | {n for one in parameters for n in one.readers}
        groups, next_group = list(range(len(layers))), len(layers) - 1
        for place in reversed(range(len(layers))):
            if place in read or layers[place].inputs:
                next_group = place
            else:
                groups[place] = next_group
        return cls(tuple(layers), parameters, input_bytes, tuple(groups))

    @property
    def count(self) -> int:
        """Return the number of layers."""
        return len(self.layers)

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """List pairs of a layer and one that reads its result."""
        return tuple((source, place) for place, one in enumerate(self.layers) for source in one.inputs)

    @cached_property
    def group_of(self) -> NDArray[np.int64]:
        """Group of each layer, numbered in the order of their first layers."""
        given = self.groups or tuple(range(self.count))
        numbers: dict[int, int] = {}
        return np.array([numbers.setdefault(one, len(numbers)) for one in given], np.int64)

    @cached_property
    def reads(self) -> tuple[frozenset[int], ...]:
        """Return for each group the other groups that it reads."""
        found: list[set[int]] = [set() for _ in range(int(self.group_of.max()) + 1)]
        for source, place in self.edges:
            a, b = int(self.group_of[source]), int(self.group_of[place])
            if a != b:
                found[b].add(a)
        return tuple(map(frozenset, found))

    def column(self, field: str) -> NDArray[np.float64]:
        """Return one field of all layers as numbers."""
        return np.array([getattr(one, field) for one in self.layers], np.float64)

    @cached_property
    def tied(self) -> tuple[Parameter, ...]:
        """List the parameters that several layers read, which a cut may put on several stages."""
        return tuple(one for one in self.parameters if len(set(self.group_of[list(one.readers)].tolist())) > 1)

    @cached_property
    def own_bytes(self) -> NDArray[np.float64]:
        """Bytes of the parameters of each layer that are not ``tied``."""
        found, tied = np.zeros(self.count), set(self.tied)
        for one in self.parameters:
            if one not in tied:
                found[one.readers[0]] += one.bytes
        return found

    @property
    def parameter_bytes(self) -> int:
        """Return the bytes of all parameters, each counted once."""
        return sum(one.bytes for one in self.parameters)

    def tied_together(self) -> PartitionGraph:
        """Return the graph in which readers of a tied parameter, and all layers between them, stay on one stage."""
        groups = (self.groups and list(self.groups)) or list(range(self.count))
        for one in self.parameters:
            groups = _joined(groups, one.readers)
        return PartitionGraph(self.layers, self.parameters, self.input_bytes, _closed(groups, self.edges))

    def contracted(self, weights: NDArray[np.float64]) -> PartitionGraph:
        """Return the graph in which layers that cost nothing stay with what they read, where no cut gets worse by it.

        ``weights``: seconds of each layer. A layer that takes no time, has no parameters and saves nothing joins the
        one that it reads if nobody reads it; all readers of a layer join it if each is such a layer, reads nothing
        else, and together they hand on no more bytes than the layer.
        """
        readers: list[list[int]] = [[] for _ in self.layers]
        for source, place in self.edges:
            readers[source].append(place)
        is_free = (weights == 0) & (self.own_bytes == 0) & (self.column("saved_bytes") == 0)
        is_free[[place for one in self.tied for place in one.readers]] = False
        is_free &= np.array([len(one.inputs) == 1 for one in self.layers])
        groups = (self.groups and list(self.groups)) or list(range(self.count))
        for place, own in enumerate(readers):
            size = sum(self.layers[one].output_bytes for one in own)
            fits = size <= self.layers[place].output_bytes
            joined = own if fits and all(is_free[one] for one in own) else ()
            for one in joined or [one for one in own if is_free[one] and not readers[one]]:
                groups = _joined(groups, (place, one))
        return PartitionGraph(self.layers, self.parameters, self.input_bytes, tuple(groups))


def _joined(groups: list[int], places: Sequence[int]) -> list[int]:
    own = {groups[place] for place in places}
    return [min(own) if one in own else one for one in groups] if len(own) > 1 else groups


def _closed(groups: list[int], edges: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Join groups that would come both before and after each other, until none does."""
    while True:
        names = sorted(set(groups))
        numbers = {name: number for number, name in enumerate(names)}
        reach = np.eye(len(names), dtype=bool)
        for source, place in edges:
            reach[numbers[groups[place]], numbers[groups[source]]] = True
        for middle in range(len(names)):
            reach |= reach[:, [middle]] & reach[[middle], :]
        circles = [(names[a], names[b]) for a, b in np.argwhere(reach & reach.T) if a < b]
        if not circles:
            return tuple(groups)
        for a, b in circles:
            groups = [min(a, b) if one in (a, b) else one for one in groups]
