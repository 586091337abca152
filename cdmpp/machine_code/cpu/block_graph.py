"""BlockGraph: a function as basic blocks and the ways between them, whatever language its lines are in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import networkx as nx


@dataclass(frozen=True)
class BlockGraph(ABC):
    """One function: instructions by block, in the order of the text; the first block is the entry."""

    name: str
    blocks: dict[str, list[str]]

    @abstractmethod
    def targets(self, name: str, following: str) -> list[str]:
        """Blocks that ``name`` may go to, by its lines; ``following``: the next of the text."""

    @cached_property
    def successors(self) -> dict[str, list[str]]:
        """Block -> blocks that may follow it, each once."""
        ways = {a: self.targets(a, b) for a, b in zip(self.blocks, [*list(self.blocks)[1:], ""], strict=True)}
        return {name: [t for t in dict.fromkeys(targets) if t in self.blocks] for name, targets in ways.items()}

    @cached_property
    def graph(self) -> nx.DiGraph:
        """The same as a graph."""
        return nx.DiGraph(self.successors)

    @property
    def entry(self) -> str:
        """The first block."""
        return next(iter(self.blocks))

    @cached_property
    def order(self) -> list[str]:
        """Reverse postorder: blocks that the entry leads to, each before those it leads to, back edges apart."""
        return list(nx.dfs_postorder_nodes(self.graph, self.entry))[::-1]

    @cached_property
    def place(self) -> dict[str, int]:
        """Block -> its index in ``order``."""
        return {block: place for place, block in enumerate(self.order)}

    def after_checks(self, refusal: str) -> Self:
        """The part of TVM's wrapper behind the checks of arguments, in whose refusing blocks a line has ``refusal``."""
        refusing = [name for name, lines in self.blocks.items() if any(refusal in line for line in lines)]
        checks = set(refusing).union(*(nx.ancestors(self.graph, name) for name in refusing))
        starts = sorted({target for name in checks for target in self.successors[name]} - checks)
        after = {start: nx.descendants(self.graph, start) - {start} for start in starts}
        start = max(starts, key=lambda name: len(after[name]), default="")
        names = [start, *(name for name in self.blocks if name in after[start])] if start else list(self.blocks)
        part = type(self)(self.name, {name: self.blocks[name] for name in names})
        # In assembly a block goes on to the next of the text, which may not be the next of the part.
        part.__dict__["successors"] = {n: [t for t in self.successors[n] if t in part.blocks] for n in names}
        return part


def runs_of_blocks(
    order: Sequence[str],
    bodies: Mapping[str, frozenset[str]],
    trips: Mapping[str, float],
    ways: Callable[[str], tuple[Sequence[str], str | None]],
    given: Mapping[str, float] | None = None,
    guards_pass: bool = False,
) -> dict[str, float]:
    """Runs of each block of ``order``, of which the first runs once; ``given`` ones replace what flows in.

    A loop is left once in its ``trips``, other branches are even; with ``guards_pass`` those outside of loops let all
    pass. ``ways``: block -> blocks that may follow it, and the header of the loop around it that they may leave.
    """
    place = {block: i for i, block in enumerate(order)}
    inflow = defaultdict(float, {order[0]: 1.0})
    runs: dict[str, float] = {}
    for block in order:
        runs[block] = (given or {}).get(block, inflow[block] * trips.get(block, 1.0))
        targets, header = ways(block)
        inside = [target in bodies[header] for target in targets] if header else []
        for i, target in enumerate(targets):
            if place.get(target, -1) <= place[block]:
                continue  # the back edge of a loop is in its trips already
            share = 1.0 / len(targets)
            if header and len(set(inside)) == 2:
                share = 1.0 - 1.0 / trips[header] if inside[i] else 1.0 / trips[header]
            if guards_pass and not header:
                inflow[target] = max(inflow[target], runs[block])
            else:
                inflow[target] += runs[block] * share
    return runs
