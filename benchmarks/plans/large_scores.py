"""Scores, intervals and tables that all public tables of large jobs share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog, nnls

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
COLUMNS = ["fitted on", "judged on", "rows", "predicted by", "MAPE, %", "median, %", "90 % within, %", "in interval, %"]
"""Heads of a table of ``line``."""
LEVEL = (0.1, 0.9)
"""Quantiles of measured over predicted seconds between which 8 of 10 rows are expected."""


@dataclass(frozen=True)
class Interval:
    """Factors from the predicted seconds to the ends of an interval of 80 %."""

    low: float
    high: float

    @classmethod
    def of(cls, predicted_s: Floats, measured_s: Floats) -> Interval:
        """Read them from rows that no fit saw which predicted them."""
        low, high = np.quantile(measured_s / predicted_s, LEVEL)
        return cls(float(low), float(high))

    def covered(self, predicted_s: Floats, measured_s: Floats) -> float:
        """Return the share of rows within it, in per cent."""
        ratio = measured_s / predicted_s
        return float(100 * ((ratio >= self.low) & (ratio <= self.high)).mean())


def line(
    fitted: str, judged: str, way: str, predicted_s: Floats, measured_s: Floats, interval: Interval | None = None
) -> list[str]:
    """Return a row of a table of ``COLUMNS``."""
    off = 100 * np.abs(predicted_s / measured_s - 1)
    covered = "" if interval is None else f"{interval.covered(predicted_s, measured_s):.0f}"
    numbers = [f"{value:.1f}" for value in (off.mean(), np.median(off), np.quantile(off, 0.9))]
    return [fitted, judged, str(len(off)), way, *numbers, covered]


def of_terms(terms: Floats, measured_s: Floats, seen: Mask) -> Floats:
    """Fit terms of 0 or more to relative errors of the rows that are seen; (n,) seconds of all rows."""
    scaled = terms[seen] / measured_s[seen][:, np.newaxis]
    size = np.maximum(scaled.max(axis=0), 1e-30)
    found, _ = nnls(scaled / size, np.ones(int(seen.sum())))
    return np.asarray(terms @ (found / size))


def of_one(amount: Floats, measured_s: Floats, seen: Mask) -> Floats:
    """Take the median rate of the rows that are seen; (n,) seconds of all rows."""
    return amount * float(np.median(measured_s[seen] / amount[seen]))


def nearest_in_order(values: Floats, weights: Floats, order: Floats) -> Floats:
    """Return the (n,) numbers nearest to ``values`` for which no row of ``order @ found`` is above 0.

    Args:
        values: (n,).
        weights: (n,) of each number's absolute change, whose sum is least.
        order: (conditions, n).
    """
    count, own = len(values), np.eye(len(values))
    found = linprog(
        np.concatenate([np.zeros(count), weights]),
        A_ub=np.block([[own, -own], [-own, -own], [order, np.zeros_like(order)]]),
        b_ub=np.concatenate([values, -values, np.zeros(len(order))]),
        bounds=[(None, None)] * count + [(0, None)] * count,
        method="highs",
    )
    return np.asarray(found.x[:count])


def out_of_fold(
    folds: Sequence[Hashable], seen: Mask, predicted: Callable[[Mask, Mask], Floats]
) -> tuple[Floats, NDArray[np.int64]]:
    """Predict each seen row by the seen rows of other folds.

    Args:
        folds: (n,) fold of each row.
        seen: rows that may be used.
        predicted: rows to fit to, rows to predict -> seconds of these.

    Returns:
        Seconds, and the places of their rows.
    """
    names = np.array([hash(one) for one in folds])
    seconds, places = list[Floats](), list[NDArray[np.int64]]()
    for name in dict.fromkeys(names[seen].tolist()):
        judged = seen & (names == name)
        seconds.append(predicted(seen & ~judged, judged))
        places.append(np.flatnonzero(judged))
    return np.concatenate(seconds), np.concatenate(places)


@dataclass(frozen=True)
class Choice:
    """Choosing a plan of each group by predicted seconds."""

    groups: int
    best: float
    """Groups in which the plan chosen is the fastest, in per cent."""
    near: float
    """Groups in which it takes at most 5 % longer than the fastest, in per cent."""
    regret: float
    """Mean of how much longer it takes, in per cent."""

    @classmethod
    def of(cls, groups: Sequence[Hashable], predicted_s: Floats, measured_s: Floats) -> Choice:
        """Judge groups of two or more plans."""
        of_group = dict[Hashable, list[int]]()
        for place, group in enumerate(groups):
            of_group.setdefault(group, []).append(place)
        found = [np.array(own) for own in of_group.values() if len(own) > 1]
        over = np.array([measured_s[own][predicted_s[own].argmin()] / measured_s[own].min() - 1 for own in found])
        return cls(len(over), *(float(100 * one.mean()) for one in (over <= 0, over <= 0.05, over)))

    @property
    def cells(self) -> list[str]:
        """Return them as cells of a table."""
        return [str(self.groups), f"{self.best:.0f}", f"{self.near:.0f}", f"{self.regret:.1f}"]
