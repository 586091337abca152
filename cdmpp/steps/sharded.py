"""Sharded: every rank keeps a part of each parameter, as PyTorch's fully sharded data parallel (FSDP2) does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdmpp.errors import CdmppError
from cdmpp.steps.exchange import START, Exchange, check_alike
from cdmpp.steps.work import RankWork


@dataclass(frozen=True)
class Sharded:
    """Each unit is gathered before its forward pass and again before its backward pass; then gradients are scattered.

    A rank updates its own part alone.
    """

    overlap: bool = True
    """As on GPUs: a unit is gathered while the one before computes, and gradients are scattered while the next one
    does, one unit at a time. False, as on CPUs: computing stands still meanwhile."""

    name = "fsdp"

    def shards(self, ranks: int) -> int:
        """Ranks over which parameters are cut."""
        return ranks

    def exchanges(self, works: Sequence[RankWork]) -> tuple[Exchange, ...]:
        """Of one step, in the order in which ranks launch them.

        ``CdmppError`` where ranks have other units, or none although there are gradients.
        """
        check_alike(works)
        units = works[0].units
        if not units and works[0].gradients:
            raise CdmppError("sharded training needs units of parameters, and this work has none: take ddp or ps")
        forward = sorted(range(len(units)), key=lambda i: units[i].forward)
        backward = sorted(range(len(units)), key=lambda i: units[i].backward)
        again = [unit for unit in backward if not units[unit].is_kept]
        launched = [
            *self._scatters(works, sorted(backward, key=lambda i: units[i].backward[1])),
            *self._gathers(works, forward, "forward"),
            *self._gathers(works, again, "backward"),
        ]
        return tuple(sorted(launched, key=lambda exchange: exchange.after[0]))  # stable: scatters go first

    def _gathers(self, works: Sequence[RankWork], order: Sequence[int], phase: str) -> list[Exchange]:
        """Of ``order``: units by number. With overlap one may leave where the unit before begins."""
        found = []
        for place, number in enumerate(order):
            ahead = order[max(place - 1, 0)] if self.overlap else number
            after = tuple(max(begin - 1, START) for begin in _places(works, ahead, phase, 0))
            name = f"{works[0].units[number].name} {phase}"
            before = _places(works, number, phase, 0)
            found.append(Exchange(name, "all_gather", works[0].units[number].bytes, after, before))
        return found

    def _scatters(self, works: Sequence[RankWork], order: Sequence[int]) -> list[Exchange]:
        """With overlap, what follows the backward pass of the next unit waits: one buffer holds what is scattered."""
        found = []
        for place, number in enumerate(order):
            unit, after = works[0].units[number], _places(works, number, "backward", 1)
            blocks = order[min(place + 1, len(order) - 1)] if self.overlap else number
            before = tuple(end + 1 for end in _places(works, blocks, "backward", 1))
            found.append(Exchange(f"{unit.name} gradients", "reduce_scatter", unit.bytes, after, before))
        return found


def _places(works: Sequence[RankWork], number: int, phase: str, end: int) -> tuple[int, ...]:
    return tuple(getattr(work.units[number], phase)[end] for work in works)
