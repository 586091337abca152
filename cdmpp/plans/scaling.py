"""Scaling: the best plan for every number of devices, and the quantity that binds next as they become more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from cdmpp.errors import CdmppError
from cdmpp.plans.limits import binding, refusal, terms
from cdmpp.plans.question import Judged, Question

COUNTS = tuple(2**power for power in range(13))
"""Numbers of devices of a scaling curve."""
MOST_DOUBLINGS = 6
"""The next quantity that binds is looked for up to so many times twice the devices."""


@dataclass(frozen=True)
class ScalingPoint:
    """The best plan of one combination on one number of devices, by closed form."""

    ranks: int
    combination: str
    step_s: float
    """NaN where no plan fits."""
    memory_bytes: float
    limit: str
    """The term that most of the step goes into, or the quantity that refuses all plans."""


def scaling(question: Question, counts: Iterable[int]) -> tuple[ScalingPoint, ...]:
    """Return a point for each combination and number of devices; numbers for which there are no links are left out."""
    found: list[ScalingPoint] = []
    for ranks in counts:
        try:
            judged = question.leading(ranks, question.names)
        except CdmppError:
            continue
        found += points(judged)
    return tuple(found)


def points(judged: Judged) -> list[ScalingPoint]:
    """Return the best plan of each combination."""
    plans, costs, parts = judged.plans, judged.costs, terms(judged.costs)
    order, found = judged.order(), []
    for number, one in enumerate(plans.combinations):
        own = order[plans.combination[order] == number]
        rows = np.flatnonzero(plans.combination == number)
        if len(own):
            row = int(own[0])
            limit = binding({name: float(values[row]) for name, values in parts.items()})
            values = (float(costs.step_s[row]), float(costs.memory_bytes[row]), limit)
        elif len(rows):
            values = (float("nan"), float("nan"), refusal(plans, costs, rows))
        else:
            continue
        found.append(ScalingPoint(plans.ranks, one.name, *values))
    return found


def next_limits(question: Question, names: tuple[str, ...]) -> Mapping[str, str]:
    """Return, for each combination, what binds next and at how many devices, or up to how many nothing does."""
    first = {one.combination: one.limit for one in points(question.judged()) if one.combination in names}
    found, last = dict.fromkeys(names, ""), question.ranks
    for doubling in range(1, MOST_DOUBLINGS + 1):
        try:
            asked = tuple(name for name in names if not found[name])
            judged = question.leading(question.ranks * 2**doubling, asked)
        except CdmppError:
            break
        last = judged.plans.ranks
        for one in points(judged):
            if one.limit != first[one.combination]:
                found[one.combination] = f"{one.limit} at {one.ranks} devices"
        if all(found.values()):
            break
    if last == question.ranks:
        return found
    return {name: limit or f"the same up to {last} devices" for name, limit in found.items()}
