"""Shares: how many micro-batches each replica has, so that all end at about the same time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from cdmpp.plans.plan import ACCUMULATION

_MOST = int(ACCUMULATION.most)


def balanced_shares(pace_s: Sequence[float], fill_s: Sequence[float], total: int) -> tuple[int, ...]:
    """Divide micro-batches among replicas, at least one each, so that the last of them ends as early as can be.

    A replica takes its fill and so many times its pace. Each further micro-batch goes to the one that would end first
    with it, which is best, since the others end no earlier; of equal ones to the first.

    Args:
        pace_s: seconds that a further micro-batch takes on each replica.
        fill_s: seconds that it takes whatever their number.
        total: micro-batches of all replicas, as many as there are replicas or more.
    """
    shares = [1] * len(pace_s)
    heap = [(fill + 2 * pace, number) for number, (pace, fill) in enumerate(zip(pace_s, fill_s, strict=True))]
    heapq.heapify(heap)
    for _ in range(total - len(shares)):
        end_s, number = heap[0]
        shares[number] += 1
        if shares[number] == _MOST:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (end_s + pace_s[number], number))
    return tuple(shares)
