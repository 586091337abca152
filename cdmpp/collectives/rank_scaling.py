"""Ranks that nobody measured: the curve of another count, from those of two measured ones or of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from cdmpp.collectives.collective import Collective, steps, traffic
from cdmpp.collectives.curve import Curve
from cdmpp.collectives.interconnect import Interconnect
from cdmpp.collectives.sheet_model import SheetModel


def scaled_from_two(few: Curve, many: Curve, ranks: int) -> Curve:
    """Scale curves at two other counts of the same system, kind and back end to ``ranks``.

    What a short message takes grows with the steps of the algorithm, what a long one takes with its traffic: from 2
    and 4 ranks to 8 the difference between the two comes on top twice, or by half. In between it goes by how much of
    the time follows the bytes at that size, the elasticity of the latency.
    """
    knots = np.union1d(few.bytes, many.bytes)
    knots = knots[(knots >= max(few.bytes[0], many.bytes[0])) & (knots <= min(few.bytes[-1], many.bytes[-1]))]
    base = replace(many, bytes=knots, latency_s=many.at(knots))
    share, difference = base.elasticity(), base.latency_s - few.at(knots)
    by_steps, by_traffic = (_weight(many.kind, few.ranks, many.ranks, ranks, of) for of in (steps, traffic))
    latency_s = base.latency_s + ((1 - share) * by_steps + share * by_traffic) * difference
    lowest = base.latency_s if ranks > many.ranks else few.at(knots) * min(1.0, ranks / few.ranks)
    return replace(base, ranks=ranks, latency_s=np.maximum.accumulate(np.maximum(latency_s, lowest)))


def scaled_by_sheet(known: Curve, sheet: SheetModel, link: Interconnect, ranks: int) -> Curve:
    """Scale the curve at one other count to ``ranks`` as the sheet's times grow, never falling."""

    def told_s(size: float, count: int) -> float:
        return sheet.seconds(Collective(known.kind, int(size), count, known.backend), link)

    grown = [told_s(size, ranks) / told_s(size, known.ranks) for size in known.bytes]
    return replace(known, ranks=ranks, latency_s=np.maximum.accumulate(known.latency_s * grown))


def nearest_two(counts: Iterable[int], ranks: int) -> tuple[int, int]:
    """Choose the two of at least two measured counts that are nearest to ``ranks`` as ratios, the smaller one first."""
    first, second = sorted(counts, key=lambda count: (abs(math.log(count / ranks)), count))[:2]
    return min(first, second), max(first, second)


def _weight(kind: str, few: int, many: int, ranks: int, of: Callable[[str, int], float]) -> float:
    spread = of(kind, many) - of(kind, few)
    return (of(kind, ranks) - of(kind, many)) / spread if spread else 0.0
