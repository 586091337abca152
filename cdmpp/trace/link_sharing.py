"""Link bandwidth sharing: what an exchange takes with its links for itself, from spans of several that shared them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cdmpp.steps.exchange_tasks import links_of
from cdmpp.trace.matching import MatchedCollective


def unshared_s(step: Sequence[MatchedCollective]) -> list[float]:
    """Return seconds of the link that each took: with n on its tightest link at a time, an n-th of that time counts.

    The inverse of ``simulate.flow.SharedLinks``, which gives each of n flows an n-th of the rate. A message moves when
    the one before it between the same ranks is through.
    """
    links = [links_of(sorted(one.spans), one.peers) for one in step]
    starts, ends = [one.arrival_s for one in step], [one.end_s for one in step]
    through = dict[frozenset[int], float]()
    for place in sorted(range(len(step)), key=lambda place: (starts[place], ends[place])):
        one = step[place]
        if one.peers is not None:
            queue = frozenset(one.peers)
            starts[place] = min(max(starts[place], through.get(queue, starts[place])), ends[place])
            through[queue] = ends[place]
    moments = sorted({*starts, *ends})
    found = [0.0] * len(step)
    for low, high in zip(moments, moments[1:], strict=False):
        active = [place for place, start in enumerate(starts) if start <= low and ends[place] >= high]
        on = Counter(link for place in active for link in links[place])
        for place in active:
            found[place] += (high - low) / max(on[link] for link in links[place])
    return found
