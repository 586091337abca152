"""Overlap: how much longer a step of one rank gets by its exchanges, some of which hide behind computing."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cdmpp.steps.exchange import Exchange

Floats = NDArray[np.float64]


def exposed_s(
    starts_s: Floats, gaps_s: Floats, exchanges: Sequence[Exchange], costs_s: Floats, awaited: Sequence[int] = ()
) -> Floats:
    """Compute the seconds by which exchanges delay the end of a step, for several steps of the same ops at once.

    Each group of ranks has one exchange at a time, in the order in which they are given; ops run in theirs.

    Args:
        starts_s: start of each op without exchanges, and the end of the step; a row a step.
        gaps_s: pause after each op, in which an exchange that it launches is under way already.
        exchanges: those of rank 0, with the ops that launch them and the ops that wait for them.
        costs_s: seconds of each exchange.
        awaited: places of ops that wait for all exchanges, next to those that each exchange names.
    """
    delay_s, free_s = np.zeros(len(starts_s)), dict[tuple[str, ...], Floats]()
    places, delays_s = [-1], [delay_s]
    waiting: list[tuple[int, int, Floats]] = []

    def wait_up_to(place: int) -> None:
        nonlocal delay_s
        while waiting and waiting[0][0] <= place:
            at, _, finish_s = heapq.heappop(waiting)
            delay_s = np.maximum(delay_s, finish_s - starts_s[:, at])
            places.append(max(at, places[-1]))
            delays_s.append(delay_s)

    for number, one in enumerate(exchanges):
        after = one.after[0]
        wait_up_to(after)
        launched_s = starts_s[:, after + 1] + delays_s[bisect_right(places, after) - 1]
        if after >= 0:
            launched_s = launched_s - gaps_s[:, after]
        ended_s = np.maximum(free_s.get(one.along, 0.0), launched_s) + costs_s[number]
        free_s[one.along] = ended_s
        for before in (*one.before.get(0, ()), *awaited):
            heapq.heappush(waiting, (before, number, ended_s))
    wait_up_to(starts_s.shape[1])
    return delay_s
