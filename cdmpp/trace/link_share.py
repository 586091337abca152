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


def queue_of(kind: str, group: str) -> str:
    """Where messages between two ranks wait for those before them, either way; empty for all else.

    A message moves when the receiver has told the sender that it is there, and that word stands behind what the
    receiver sends to the sender itself.
    """
    return "-".join(sorted(group.split("->"))) if kind == "send_recv" and "->" in group else ""


def alone_s(step: Sequence[Together]) -> list[float]:
    """Seconds of the link that each took: with n on its tightest link at a time, an n-th of that time counts.

    The inverse of ``simulate.flow.SharedLinks``, which gives each of n flows an n-th of the rate. A message moves when
    the one before it between the same ranks is through.
    """
    links = [links_of(sorted(one.spans), one.kind, one.group) for one in step]
    starts, through = [one.arrival_s for one in step], dict[str, float]()
    for place in sorted(range(len(step)), key=lambda place: (starts[place], step[place].end_s)):
        one = step[place]
        if queue := queue_of(one.kind, one.group):
            starts[place] = min(max(starts[place], through.get(queue, starts[place])), one.end_s)
            through[queue] = one.end_s
    moments = sorted({*starts, *(one.end_s for one in step)})
    found = [0.0] * len(step)
    for low, high in zip(moments, moments[1:], strict=False):
        active = [place for place, one in enumerate(step) if starts[place] <= low and one.end_s >= high]
        on = Counter(link for place in active for link in links[place])
        for place in active:
            found[place] += (high - low) / max(on[link] for link in links[place])
    return found
