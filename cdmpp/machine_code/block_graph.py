"""BlockGraph: a function as basic blocks and the ways between them, whatever language its lines are in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Self


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

    def after_checks(self, refusal: str) -> Self:
        """What runs once nothing can be refused any more: of TVM's wrapper, the part behind the checks of arguments.

        ``refusal``: stands in a line of every block that refuses an argument.
        """
        checks = {name for name, lines in self.blocks.items() if any(refusal in line for line in lines)}
        work = list(checks)
        while work:
            for before in self.predecessors.get(work.pop(), []):
                if before not in checks:
                    checks.add(before)
                    work.append(before)
        starts = sorted({t for name in checks for t in self.successors[name] if t not in checks})
        return self._part(max(map(self._reached, starts), key=len, default=list(self.blocks)))

    def _reached(self, start: str) -> list[str]:
        """Blocks that ``start`` leads to, itself first."""
        seen, work = {start}, [start]
        while work:
            new = [target for target in self.successors[work.pop()] if target not in seen]
            seen.update(new)
            work += new
        return [start, *(name for name in self.blocks if name in seen and name != start)]

    def _part(self, names: list[str]) -> Self:
        part = type(self)(self.name, {name: self.blocks[name] for name in names})
        # In assembly a block goes on to the next of the text, which may not be the next of the part.
        part.__dict__["successors"] = {n: [t for t in self.successors[n] if t in part.blocks] for n in names}
        return part
