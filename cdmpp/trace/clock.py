"""One shift per rank that makes the clocks of all ranks agree with what causes what.

Source: Hu et al., *dPRO: A Generic Performance Diagnosis and Optimization Toolkit for Expediting Distributed DNN
Training*, MLSys 2022: the least shifts, by sum of squares, under which nothing is received before it was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from cdmpp.errors import DataError

SLACK_S = 20e-6
"""The slack that is allowed without a shift: a span is written down a little before or after what it stands for."""


@dataclass(frozen=True)
class Order:
    """``first`` must not come after ``then``: an exchange ends on no rank before it has begun on all."""

    first_rank: int
    first_s: float
    first: str
    """The event, for messages."""
    then_rank: int
    then_s: float
    then: str


def shifts(ranks: Sequence[int], orders: Iterable[Order], slack_s: float = SLACK_S) -> dict[int, float]:
    """Return the seconds to add to the clock of each rank.

    The point of the polyhedron of all orders that is nearest to zero: least-distance programming by non-negative least
    squares (Lawson and Hanson, *Solving Least Squares Problems*, 1974, chapter 23).

    Raises:
        DataError: orders that no shift can keep; names two events.
    """
    tightest: dict[tuple[int, int], Order] = {}
    for order in orders:
        if order.first_rank != order.then_rank:
            pair = (order.first_rank, order.then_rank)
            if pair not in tightest or _room(order) < _room(tightest[pair]):
                tightest[pair] = order
    place = {rank: row for row, rank in enumerate(ranks)}
    bounds = np.full((len(ranks), len(ranks)), np.inf)
    for (first, then), order in tightest.items():
        bounds[place[first], place[then]] = _room(order) + slack_s
    _check(ranks, bounds, tightest)
    found = _nearest(bounds)
    return {rank: float(found[place[rank]]) for rank in ranks}


def _room(order: Order) -> float:
    """Seconds by which the first rank's clock may be shifted more than the other's."""
    return order.then_s - order.first_s


def _nearest(bounds: np.ndarray) -> np.ndarray:
    """Least x by squares with ``x[i] - x[j] <= bounds[i, j]``."""
    rows = [(i, j) for i, j in zip(*np.nonzero(np.isfinite(bounds)), strict=True) if i != j]
    limits = np.array([-bounds[i, j] for i, j in rows])
    if not len(limits) or limits.max() <= 0:
        return np.zeros(len(bounds))
    scale = np.abs(limits).max()
    matrix = np.zeros((len(rows), len(bounds)))
    for row, (i, j) in enumerate(rows):
        matrix[row, i], matrix[row, j] = -1.0, 1.0
    system = np.vstack([matrix.T, limits / scale])
    target = np.zeros(len(bounds) + 1)
    target[-1] = 1.0
    weights, _ = nnls(system, target, maxiter=100 * system.shape[1])
    residual = system @ weights - target
    return -residual[:-1] / residual[-1] * scale


def _check(ranks: Sequence[int], bounds: np.ndarray, tightest: dict[tuple[int, int], Order]) -> None:
    """``DataError`` where going round a circle of ranks needs less than no time (Floyd and Warshall)."""
    far, via = bounds.copy(), np.tile(np.arange(len(bounds)), (len(bounds), 1))
    for middle in range(len(bounds)):
        through = far[:, middle, None] + far[None, middle, :]
        better = through < far
        far = np.where(better, through, far)
        via = np.where(better, via[:, middle, None], via)
        if (np.diag(far) < 0).any():
            break
    else:
        return
    at = int(np.argmin(np.diag(far)))
    circle = [at]
    while len(circle) <= len(bounds):
        circle.append(int(via[circle[-1], at]))
        if circle[-1] == at:
            break
    pairs = [(ranks[a], ranks[b]) for a, b in zip(circle, circle[1:], strict=False) if (ranks[a], ranks[b]) in tightest]
    one, two = sorted((tightest[pair] for pair in pairs), key=_room)[:2]
    raise DataError(
        "no shift of the clocks lets the exchanges happen in order: "
        f"{one.first} (rank {one.first_rank}, {one.first_s:.6f} s) must not come after {one.then} (rank "
        f"{one.then_rank}, {one.then_s:.6f} s), and {two.first} (rank {two.first_rank}, {two.first_s:.6f} s) not after "
        f"{two.then} (rank {two.then_rank}, {two.then_s:.6f} s). Are all traces of one run?"
    )
