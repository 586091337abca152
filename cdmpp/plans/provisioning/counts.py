"""Counts: from one number to another, such as the servers among which a search chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from cdmpp.errors import UsageError
from cdmpp.platform.limits import shown


@dataclass(frozen=True)
class Counts:
    """All whole numbers from ``first`` to ``last``; ``UsageError`` where the first is below 1 or above the last."""

    first: int
    last: int

    def __post_init__(self) -> None:
        whole = type(self.first) is int and type(self.last) is int
        if not whole or not 1 <= self.first <= self.last:
            raise UsageError(f"{self}: expected whole numbers from 1 up, the smaller first, such as 1..8")

    def __str__(self) -> str:
        return f"{self.first}..{self.last}" if self.first != self.last else str(self.first)

    def __contains__(self, number: int) -> bool:
        return self.first <= number <= self.last

    def within(self, most: int) -> range:
        """Return its numbers up to ``most``."""
        return range(self.first, min(self.last, most) + 1)

    @classmethod
    def read(cls, given: str) -> Self:
        """Read ``A..B``, or ``A`` for that number only; ``UsageError`` for anything else."""
        first, dots, last = given.partition("..")
        try:
            numbers = int(first), int(last if dots else first)
        except ValueError:
            raise UsageError(f"{shown(given)}: expected a number or a range, such as 4 or 1..8") from None
        return cls(*numbers)
