"""Link bandwidth sharing: what an exchange takes with its links for itself, from spans of several that shared them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cdmpp.steps.exchange_tasks import links_of
from cdmpp.trace.matching import MatchedCollective


def begun_s(step: Sequence[MatchedCollective]) -> list[float]:
    """Return when each began to move: when its last rank was there, and a message not before the one before it.

    Messages between two ranks take turns, either way.
    """
    starts, ends = [one.arrival_s for one in step], [one.end_s for one in step]
    through = dict[frozenset[int], float]()
    for place in sorted(range(len(step)), key=lambda place: (starts[place], ends[place])):
        if (peers := step[place].peers) is not None:
            queue = frozenset(peers)
            starts[place] = min(max(starts[place], through.get(queue, starts[place])), ends[place])
            through[queue] = ends[place]
    return starts


def unshared_s(step: Sequence[MatchedCollective]) -> list[float]:
    """Return seconds of the link that each took: with n on its tightest link at a time, an n-th of that time counts.

    The inverse of ``simulate.shared_links.SharedLinks``, which gives each of n flows an n-th of the rate.
    """
    links = [links_of(sorted(one.spans), one.peers) for one in step]
    starts, ends = begun_s(step), [one.end_s for one in step]
    moments = sorted({*starts, *ends})
    found = [0.0] * len(step)
    for low, high in zip(moments, moments[1:], strict=False):
        active = [place for place, start in enumerate(starts) if start <= low and ends[place] >= high]
        on = Counter(link for place in active for link in links[place])
        for place in active:
            found[place] += (high - low) / max(on[link] for link in links[place])
    return found
