"""Downsets: the sets of layers that may lie before a cut, with what crosses each of them.

A set is one where each layer comes with all that it reads. A partition is a chain of such sets: a stage is what one has
more than the one before. The border of a set is an antichain of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cdmpp.partition.graph import PartitionGraph

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Downsets:
    """Rows are sets, smaller ones first: the first is empty and the last has all layers."""

    graph: PartitionGraph
    has: Bools
    """Set, layer -> whether the layer is in it."""

    def __len__(self) -> int:
        return len(self.has)

    @cached_property
    def is_within(self) -> Bools:
        """Tell which set (row) is a true part of which other (column)."""
        packed = np.packbits(self.has, axis=1)
        found = np.ones((len(self), len(self)), np.bool_)
        for column in packed.T:
            found &= (column[:, None] & ~column[None, :]) == 0
        np.fill_diagonal(found, False)
        return found

    @cached_property
    def _crosses(self) -> Bools:
        """Set, layer -> whether a reader outside of the set reads the layer's result from inside."""
        found = np.zeros_like(self.has)
        for source, place in self.graph.edges:
            found[:, source] |= self.has[:, source] & ~self.has[:, place]
        return found

    def crossing(self, is_backward: bool = False) -> tuple[Floats, Floats]:
        """Return the messages and the bytes that cross each set: one message a tensor, at least one where it is cut.

        With ``is_backward`` those of gradients; a cut over which no gradient goes has none.
        """
        size = self.graph.column("output_bytes")
        if is_backward:
            size = size * self.graph.column("has_gradient")
        sent = self._crosses & (size > 0)
        number = sent.sum(axis=1).astype(np.float64)
        if not is_backward:
            number[1:-1] = np.maximum(number[1:-1], 1)
        return number, self._crosses @ size

    def sums(self, values: Floats) -> Floats:
        """Return the sum over the layers of each set."""
        return np.asarray(self.has @ np.asarray(values, np.float64), np.float64)

    def most(self, values: Floats) -> Floats:
        """Return the largest of ``values`` among the layers of each stage from one set (row) to another (column)."""
        found = np.zeros((len(self), len(self)))
        missing = self.is_within.copy()
        for place in np.argsort(-values, kind="stable"):
            if not values[place] or not missing.any():
                break
            new = missing & ~self.has[:, place][:, None] & self.has[:, place][None, :]
            found[new] = values[place]
            missing &= ~new
        return found

    def held(self, readers: Iterable[int]) -> tuple[Bools, Bools]:
        """Return which stages have any of some layers, and which of these have not all of them."""
        count = self.has[:, list(readers)].sum(axis=1)
        inside = count[None, :] - count[:, None]
        return inside > 0, (inside > 0) & (inside < count[-1])


def prefixes(graph: PartitionGraph) -> Downsets:
    """Return only the sets that are the beginning of the order in which the layers stand, where that is one of groups.

    Layers of a group come all at once, with what they read.
    """
    count = len(graph.reads)
    order = _in_order(graph)
    has_groups = np.zeros((count + 1, count), np.bool_)
    for place, group in enumerate(order):
        has_groups[place + 1 :, group] = True
    return Downsets(graph, has_groups[:, graph.group_of])


def every_downset(
    graph: PartitionGraph, most: int, parts: Iterable[tuple[frozenset[int], frozenset[int]]] | None = None,
    is_wanted: Callable[[Bools], Bools] | None = None,
) -> Downsets | None:  # fmt: skip
    """List the sets of a graph; None where they are more than ``most``.

    Args:
        graph: what is cut.
        most: most sets that are looked at.
        parts: pairs of groups that a set has in any case and of those that it has not: the sets of each pair are
            listed. None: all sets.
        is_wanted: which of several sets of layers are kept; the empty one and that of all are kept in any case.
    """
    reads, count = graph.reads, len(graph.reads)
    before = [sum(1 << one for one in own) for own in reads]
    readers: list[list[int]] = [[] for _ in range(count)]
    for place, own in enumerate(reads):
        for one in own:
            readers[one].append(place)
    found = {0, (1 << count) - 1}
    looked = 0
    for inside, outside in parts if parts is not None else [(frozenset[int](), frozenset[int]())]:
        begin, never = sum(1 << one for one in inside), sum(1 << one for one in outside)
        free = sum(1 << one for one in range(count) if not (begin | never) >> one & 1 and not before[one] & ~begin)
        waiting, seen = [(begin, free)], {begin}
        while waiting:
            last, free = waiting.pop()  # free: those that may come next
            rest = free
            while rest:
                bit = rest & -rest
                rest ^= bit
                new = last | bit
                if new not in seen:
                    seen.add(new)
                    after = sum(1 << one for one in readers[bit.bit_length() - 1] if not before[one] & ~new)
                    waiting.append((new, (free ^ bit) | after & ~(new | never)))
            if len(seen) + looked > most:
                return None
        looked += len(seen)
        found |= seen
    ordered = sorted(found, key=lambda one: (one.bit_count(), one))
    groups = np.array([[one >> place & 1 for place in range(count)] for one in ordered], np.bool_)
    has = groups.reshape(len(ordered), count)[:, graph.group_of]
    if is_wanted is not None:
        kept = is_wanted(has)
        kept[[0, -1]] = True
        has = has[kept]
    return Downsets(graph, has)


def _in_order(graph: PartitionGraph) -> list[int]:
    """Groups in the order of their layers, each after those that it reads."""
    done, order = set[int](), list[int]()

    def visit(group: int) -> None:
        stack = [group]
        while stack:
            missing = sorted(graph.reads[stack[-1]] - done)
            if missing:
                stack.append(missing[0])
                continue
            if (own := stack.pop()) not in done:
                done.add(own)
                order.append(own)

    for group in range(len(graph.reads)):
        visit(group)
    return order
