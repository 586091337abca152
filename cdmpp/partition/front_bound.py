"""A bound from the first stages: what they take at least, where all that is behind them is divided evenly.

Often one cut near the begin is what slows a partition down. A programme of the first stages proves it in seconds, where
one of all stages does not end.
"""

from __future__ import annotations

import math
import time

from cdmpp.partition.chain import capacities, least_seconds
from cdmpp.partition.integer import Programme
from cdmpp.partition.problem import PartitionProblem

_STAGES = (2, 3)
"""First stages that are looked at."""
_CLOSE = 1e-6


def front_bound_s(problem: PartitionProblem, most_s: float, seconds: float) -> float:
    """Return a time below which no slowest stage is, at most that of a known partition.

    Args:
        problem: of equal devices, without replicas; 0 is returned for others.
        most_s: seconds of the slowest stage of the known partition.
        seconds: that this may take.
    """
    if len(problem.kinds) > 1 or problem.replicas or not math.isfinite(most_s):
        return 0.0
    order, begun, bound_s = (0,) * len(problem.devices), time.monotonic(), 0.0
    whole_s = float(least_seconds(problem).sum()) / capacities(problem)[0]
    for first in (one for one in _STAGES if one < len(order)):
        left_s = seconds - (time.monotonic() - begun)
        if left_s <= 0 or bound_s >= most_s * (1 - _CLOSE):
            break
        _, own_s = Programme(problem, order, most_s, first).solved(left_s)
        bound_s = max(bound_s, min(own_s, whole_s / first))  # those of fewer stages have all layers on them
    return min(bound_s, most_s)
