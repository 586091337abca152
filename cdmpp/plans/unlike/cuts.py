"""Cuts over unlike devices: the longest stage is as short as possible, where each stage has seconds of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cdmpp.plans.cut_places import WRAPPED, CutPlaces

Floats = NDArray[np.float64]
_CLOSE = 1e-9


def balanced_over(length_s: Floats) -> tuple[int, ...]:
    """Choose cuts of a sequence under which the longest part is shortest.

    Of several such choices the one whose parts are most equal, by the sum of their squares; of these the one with the
    earliest first cut, then second, and so on.

    Args:
        length_s: (parts, places, places) seconds of each part from one place (row) to a later one (column); infinite
            where it cannot be. The first place is the start of the sequence, the last one its end.

    Returns:
        Places of the cuts, in rising order; one fewer than parts. Nothing where no choice is finite.
    """
    parts = len(length_s)
    longest = length_s[-1][:, -1]
    for own in length_s[-2::-1]:
        longest = np.maximum(own, longest[None, :]).min(axis=1)
    if not np.isfinite(longest[0]):
        return ()
    square = np.where(length_s <= longest[0] * (1 + _CLOSE), length_s, np.inf) ** 2
    best, steps = square[-1][:, -1], list[NDArray[np.int64]]()
    for own in square[-2::-1]:
        total = own + best[None, :]
        best = total.min(axis=1)
        steps.append((total <= best[:, None] * (1 + _CLOSE)).argmax(axis=1))
    found, place = list[int](), 0
    for ends in reversed(steps):
        place = int(ends[place])
        found.append(place)
    return tuple(found) if len(found) == parts - 1 else ()


def parts_s(until_s: Floats, cut_s: tuple[Floats | None, Floats | None]) -> Floats:
    """Return the seconds of a stage from each place to each later one; infinite for others.

    Args:
        until_s: (places,) seconds of all that comes before each place.
        cut_s: (places,) seconds that the stage takes longer where it begins, and where it ends; None: nothing.
    """
    found = until_s[None, :] - until_s[:, None]
    begin_s, end_s = cut_s
    if begin_s is not None:
        found = found + begin_s[:, None]
    if end_s is not None:
        found = found + end_s[None, :]
    found[np.tril_indices(len(until_s))] = np.inf
    return found


def named_places(on: CutPlaces, stages: int) -> dict[str, int]:
    """Return where so many stages can begin, by the names that a plan gives these places, in order.

    ``CdmppError``: the model has too few layers.
    """
    names = dict[int, str]()
    for name, place in on.names.items():
        names.setdefault(place, name.removeprefix(WRAPPED))
    return {names[place]: place for place in on.places(stages) if place in names}


def at_places(values: Floats, places: Sequence[int]) -> Floats:
    """Return seconds before the start, each place, and the end."""
    return np.concatenate([[0.0], values[list(places)], values[-1:]])
