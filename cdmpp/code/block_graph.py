"""BlockGraph: a function as basic blocks and the ways between them, whatever language its lines are in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class BlockGraph(ABC):
    """One function: instructions by block, in the order of the text; the first block is the entry."""

    name: str
    blocks: dict[str, list[str]]

    @cached_property
    @abstractmethod
    def successors(self) -> dict[str, list[str]]:
        """Block -> blocks that may follow it, each once."""

    @cached_property
    def predecessors(self) -> dict[str, list[str]]:
        table = defaultdict(list)
        for block, targets in self.successors.items():
            for target in targets:
                table[target].append(block)
        return dict(table)
