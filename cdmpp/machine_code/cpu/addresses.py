"""Addresses: what is known of the places that instructions read and write, as sums of registers' first values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count

from cdmpp.machine_code.cpu.operation import Operation

Value = tuple[tuple[tuple[str, int], ...], int]
"""Unknowns with their factors, sorted, and an offset in bytes."""
MOST_TERMS = 4
"""Unknowns that a sum is followed for: longer ones count as a new unknown."""
_NAMES = count()
"""Tell unknowns apart, also those that different ``Addresses`` have made."""


class Addresses:
    """Follows registers through instructions in their order: two places compare where they share their unknowns."""

    def __init__(self, known: Mapping[str, Value] | None = None) -> None:
        """``known``: values of registers before the first instruction; others are unknowns by their names."""
        self.values = dict(known or {})

    def of(self, item: Operation) -> Value:
        """The place that ``item`` reads or writes."""
        assert item.address is not None
        if not item.terms:
            return ((item.address[0], 1),), item.address[1]
        return self._sum(item.terms, item.address[1])

    def follow(self, item: Operation) -> None:
        """Take over what ``item`` writes into registers of integers."""
        if item.assigns is not None:
            register, terms, offset = item.assigns
            self.values[register] = self._sum(terms, offset)
            return
        for register in item.writes:
            if register[0] != "v":
                self.forget((register,))

    def forget(self, registers: Iterable[str]) -> None:
        """Each of them may hold anything now."""
        for register in registers:
            self.values[register] = ((f"{register}#{next(_NAMES)}", 1),), 0

    def advance(self, register: str, times: str, step: int) -> None:
        """``register`` has grown by ``step`` so many ``times``, a number that other registers may share."""
        terms, offset = self._sum(((register, 1),), 0)
        self.values[register] = tuple(sorted((*terms, (times, step)))), offset

    def _sum(self, terms: Iterable[tuple[str, int]], offset: int) -> Value:
        parts: dict[str, int] = {}
        for register, factor in terms:
            value = self.values.get(register)
            if value is None:
                parts[register] = parts.get(register, 0) + factor
                continue
            offset += factor * value[1]
            for unknown, times in value[0]:
                parts[unknown] = parts.get(unknown, 0) + factor * times
        if len(parts) > MOST_TERMS:
            return ((f"sum#{next(_NAMES)}", 1),), 0
        return tuple(sorted((unknown, times) for unknown, times in parts.items() if times)), offset
