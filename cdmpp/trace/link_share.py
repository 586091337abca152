"""What an exchange takes with the link for itself, from spans of several that shared it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cdmpp.trace.matching import Together


def links_of(ranks: Sequence[int], kind: str, group: str) -> tuple[str, ...]:
    """Ways out of and into each rank that the exchange crosses; a message ``0->1`` goes one way alone."""
    if kind == "send_recv" and "->" in group:
        sender, _, receiver = group.partition("->")
        return f"out {sender}", f"in {receiver}"
    return tuple(f"{way} {rank}" for rank in ranks for way in ("out", "in"))


def alone_s(step: Sequence[Together]) -> list[float]:
    """Seconds of the link that each took: with n on its tightest link at a time, an n-th of that time counts.

    The inverse of ``simulate.flow.SharedLinks``, which gives each of n flows an n-th of the rate.
    """
    links = [links_of(sorted(one.spans), one.kind, one.group) for one in step]
    moments = sorted({moment for one in step for moment in (one.arrival_s, one.end_s)})
    found = [0.0] * len(step)
    for low, high in zip(moments, moments[1:], strict=False):
        active = [place for place, one in enumerate(step) if one.arrival_s <= low and one.end_s >= high]
        on = Counter(link for place in active for link in links[place])
        for place in active:
            found[place] += (high - low) / max(on[link] for link in links[place])
    return found
