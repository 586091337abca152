"""Exchange: what ranks do together in a step, when each takes part, and what waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdmpp.errors import CdmppError
from cdmpp.steps.work import RankWork

START = -1
"""In the place of an operation: the start of the step."""


@dataclass(frozen=True)
class Exchange:
    """A collective of all ranks, or what one server does for them. Updates and the next step wait for it.

    Collectives start in the order in which they are given, each after the one before has ended.
    """

    name: str
    kind: str
    """``all_reduce``, ``all_gather``, ``reduce_scatter``, or ``push_pull``: a server adds up what all send."""
    bytes: int
    """As ``collective.KINDS`` counts them; of a push as many, of a pull too."""
    after: tuple[int, ...]
    """Of each rank the place of the operation that it takes part after; ``START``: from the start on."""
    before: tuple[int, ...] = ()
    """Of each rank the place of an operation that waits for it too; a place behind the last is the next step."""
    server: int = 0
    """Of a ``push_pull``: the rank on whose machine the server runs."""
    sum_s: float = 0.0
    """Seconds that the server adds up."""


def check_alike(works: Sequence[RankWork]) -> None:
    """``CdmppError`` unless all ranks exchange the same; it names the first difference."""
    if not works:
        raise CdmppError("no rank has any work: give one RankWork a rank, from 1 up")
    for place, work in enumerate(works):
        if work.rank != place:
            raise CdmppError(f"the work of rank {work.rank} stands in place {place}: give them in order, from rank 0")
        for what in ("gradients", "units"):
            own, first = _listed(work, what), _listed(works[0], what)
            if own != first:
                odd = next((pair for pair in zip(own, first, strict=False) if pair[0] != pair[1]), None)
                told = f"{odd[0]} against {odd[1]}" if odd else f"{len(own)} against {len(first)}"
                raise CdmppError(f"{what} of rank {work.rank} are not those of rank 0: {told}")


def _listed(work: RankWork, what: str) -> list[tuple[str, int]]:
    return [(one.name, one.bytes) for one in getattr(work, what)]
