"""Overlap: how much longer a step of one rank gets by its exchanges, some of which hide behind computing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cdmpp.steps.launches import IntArray, Launches

Floats = NDArray[np.float64]


class AtPlaces(Protocol):
    """Seconds of several steps at places of ops: an array with a row a place, or what makes the rows asked for."""

    def __getitem__(self, places: IntArray) -> Floats:
        """Return (places, steps) seconds."""


def exposed_s(
    starts_s: AtPlaces, gaps_s: AtPlaces, launches: Launches, costs_s: Floats, awaited: Sequence[int] = ()
) -> Floats:
    """Compute the seconds by which exchanges delay the end of a step, for several steps of the same ops at once.

    Each group of ranks has one exchange at a time, in the order in which they are given; ops run in theirs. An exchange
    delays ops, and ops delay exchanges: what follows from the delays known so far is worked out for all exchanges at
    once, again and again until no delay grows any more.

    Args:
        starts_s: start of each op without exchanges, and the end of the step; a column a step.
        gaps_s: pause after each op, in which an exchange that it launches is under way already.
        launches: exchanges with the ops that launch them and the ops that wait for them.
        costs_s: (exchanges, steps) seconds of each exchange.
        awaited: places of ops that wait for all exchanges, next to those that each exchange names.
    """
    after = launches.after
    own, numbers = launches.waits
    all_places = np.repeat(np.array(awaited, np.int64), len(after))
    all_numbers = np.tile(np.arange(len(after)), len(awaited))
    is_later = all_places > after[all_numbers]
    places, waited = np.concatenate([own, all_places[is_later]]), np.concatenate([numbers, all_numbers[is_later]])
    if not len(places):
        return np.zeros(costs_s.shape[1])
    order = np.lexsort((waited, places))
    places, waited = places[order], waited[order]
    due_s, known = starts_s[places], np.searchsorted(places, after, side="right")
    early_s = np.where(after[:, np.newaxis] < 0, 0.0, gaps_s[after])
    launched_s = starts_s[after + 1] - early_s
    degrees = list(dict.fromkeys(along for _, along in launches.groups))
    channel = np.array([degrees.index(along) for _, along in launches.groups], np.int64)[launches.group]
    groups = [np.flatnonzero(channel == number) for number in range(len(degrees))]
    queued_s = [np.cumsum(costs_s[own], axis=0) for own in groups]
    follows = np.flatnonzero(launches.follows[1:]) + 1
    found, open_steps, delays_s = np.zeros(costs_s.shape[1]), np.arange(costs_s.shape[1]), np.zeros_like(launched_s)
    ends_s = np.zeros_like(launched_s)
    for _ in range(len(after) + 1):
        begins_s = launched_s + delays_s
        begins_s[follows] = np.maximum(begins_s[follows], ends_s[follows - 1])
        before_s, ends_s = ends_s, np.empty_like(begins_s)
        for own, queue_s in zip(groups, queued_s, strict=True):
            ends_s[own] = queue_s + np.maximum.accumulate(begins_s[own] - queue_s + costs_s[own], axis=0)
        late_s = np.maximum(np.maximum.accumulate(ends_s[waited] - due_s, axis=0), 0.0)
        found[open_steps] = late_s[-1]
        later_s = np.where(known[:, np.newaxis] > 0, late_s[known - 1], 0.0)
        is_open = (later_s > delays_s).any(axis=0)
        if len(follows):
            is_open |= (ends_s > before_s).any(axis=0)
        open_steps, delays_s, ends_s = open_steps[is_open], later_s[:, is_open], ends_s[:, is_open]
        launched_s, due_s, costs_s = launched_s[:, is_open], due_s[:, is_open], costs_s[:, is_open]
        queued_s = [one[:, is_open] for one in queued_s]
        if not len(open_steps):
            break
    return found
