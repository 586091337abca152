"""Ranks that nobody measured: from two measured counts to another one, without a fitted number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cdmpp.distributed.collective import steps, traffic
from cdmpp.distributed.curve import Curve


def scaled_from_two(few: Curve, many: Curve, ranks: int) -> Curve:
    """The curve at ``ranks`` from those at two other counts of the same system, kind and back end.

    What a short message takes grows with the steps of the algorithm, what a long one takes with its traffic: from 2 and 4
    ranks to 8 the difference between the two comes on top twice, or by half. In between it goes by how much of the time
    follows the bytes at that size, the elasticity of the latency.
    """
    knots = np.union1d(few.bytes, many.bytes)
    knots = knots[(knots >= max(few.bytes[0], many.bytes[0])) & (knots <= min(few.bytes[-1], many.bytes[-1]))]
    base = replace(many, bytes=knots, latency_s=many.at(knots))
    share, difference = base.elasticity(), base.latency_s - few.at(knots)
    by_steps, by_traffic = (_weight(many.kind, few.ranks, many.ranks, ranks, of) for of in (steps, traffic))
    latency_s = base.latency_s + ((1 - share) * by_steps + share * by_traffic) * difference
    lowest = base.latency_s if ranks > many.ranks else few.at(knots) * min(1.0, ranks / few.ranks)
    return replace(base, ranks=ranks, latency_s=np.maximum.accumulate(np.maximum(latency_s, lowest)))


def _weight(kind: str, few: int, many: int, ranks: int, of: Callable[[str, int], float]) -> float:
    spread = of(kind, many) - of(kind, few)
    return (of(kind, ranks) - of(kind, many)) / spread if spread else 0.0
