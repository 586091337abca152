"""Kriging: residuals of near runs correct an expression, and say how sure a prediction is.

A Gaussian process over the logarithms of the columns, with a Matern covariance of 3/2: one part of all columns and one
of those that belong to the algorithm alone, which does not fade on more devices. Length scales and variances are those
of the largest posterior, by L-BFGS with gradients. Source of the method: Rasmussen and Williams, "Gaussian processes
for machine learning" (2006), 2.7 and 5.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpotrf, dpotri
from scipy.optimize import minimize

from cdmpp.expression.columns import role_of
from cdmpp.expression.expression import TINY_S, Expression

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.intp]
_LENGTH, _LENGTH_SPREAD = 4.0, 1.0
"""Prior of length scales, in factors of two: its median and the standard deviation of its logarithm."""
_OTHER_GROUP = 0.5
"""Covariance of runs of two groups, as a part of that of runs of one."""
MOST_LEARNT = 160
"""Runs that length scales are learnt from at most, if nothing else is said."""
_MOST_KNOWN = 1500
"""Runs that predictions lean on; more are drawn by lot."""
_ROUNDS, _FEW_ROUNDS = 40, 6
"""Steps that length scales are learnt in at most: from nothing, and from those of nearly the same runs."""
_JITTER = 1e-8
_WORST = 3.0
"""Logarithmic residuals beyond this count as this."""


@dataclass(frozen=True)
class Kriging:
    """The residuals of runs, and how they are related."""

    names: tuple[str, ...]
    """Columns."""
    points: Floats
    """Logarithms to base 2 of the columns of the runs, shape ``(runs, columns)``."""
    codes: Codes
    """Group of each run."""
    lengths: Floats
    """Length scales: of all columns, then of those that belong to the algorithm."""
    variances: tuple[float, float, float]
    """The variances of both parts and of noise."""
    weights: Floats
    """Residuals over their covariance, shape ``(runs,)``."""
    factor: Floats
    """Cholesky factor of the covariance, lower triangle."""
    learnt: int
    """Runs at most that length scales are learnt from; they are drawn by lot."""

    @classmethod
    def of(
        cls,
        columns: Mapping[str, Floats],
        codes: Codes,
        residuals: Floats,
        seed: int = 0,
        like: Kriging | None = None,
        learnt: int = MOST_LEARNT,
    ) -> Kriging:
        """Learn from the residuals of runs.

        Args:
            columns: name -> values of the runs, shape ``(runs,)``.
            codes: their groups.
            residuals: logarithms of measured over fitted times.
            seed: of the lot that draws runs where there are too many.
            like: of nearly the same runs: its length scales and variances are where learning begins, from as many.
            learnt: runs at most that length scales are learnt from.
        """
        lot = np.random.default_rng(seed).permutation(len(residuals))
        known = np.sort(lot[:_MOST_KNOWN])
        names = tuple(columns)
        points = np.log2(np.column_stack([columns[name] for name in names]))[known]
        codes, left = codes[known], np.clip(residuals[known], -_WORST, _WORST)
        most = like.learnt if like else learnt
        chosen = np.sort(np.argsort(lot[lot < len(known)])[:most]) if len(known) > most else slice(None)
        intrinsic = _intrinsic(names)
        found = _learn(points[chosen], codes[chosen], left[chosen], intrinsic, like)
        lengths, variances = np.exp(found[:-3]), np.exp(2 * found[-3:])
        covariance = _covariance(points, points, codes, codes, lengths, variances, intrinsic)
        covariance[np.diag_indices_from(covariance)] += variances[2] + _JITTER
        factor = cho_factor(covariance, lower=True)
        first, second, noise = map(float, variances)
        return cls(names, points, codes, lengths, (first, second, noise), cho_solve(factor, left), factor[0], most)

    @classmethod
    def of_fit(
        cls,
        expression: Expression,
        columns: Mapping[str, Floats],
        codes: Codes,
        times_s: Floats,
        like: Kriging | None = None,
        learnt: int = MOST_LEARNT,
    ) -> Kriging:
        """Learn from what is left of the times of runs by an expression; arguments as of ``of``."""
        fitted = np.maximum(expression.times_s(columns, codes), TINY_S)
        return cls.of(columns, codes, np.log(times_s / fitted), like=like, learnt=learnt)

    def at(self, columns: Mapping[str, Floats], codes: Codes) -> tuple[Floats, Floats]:
        """Return the residual that is expected at points and its standard deviation, shape ``(points,)`` each."""
        asked = np.log2(np.column_stack([columns[name] for name in self.names]))
        variances = np.array(self.variances)
        across = _covariance(asked, self.points, codes, self.codes, self.lengths, variances, _intrinsic(self.names))
        explained = np.einsum("ij,ji->i", across, cho_solve((self.factor, True), across.T))
        left = np.maximum(variances[0] + variances[1] - explained, 0.0)
        return across @ self.weights, np.sqrt(left + variances[2])


def _intrinsic(names: tuple[str, ...]) -> list[int]:
    found = [place for place, name in enumerate(names) if role_of(name).kind == "intrinsic"]
    return found or list(range(len(names)))


def _distances(first: Floats, second: Floats) -> Floats:
    """Squared distances in each column, shape ``(columns, first, second)``."""
    return (first.T[:, :, None] - second.T[:, None, :]) ** 2


def _matern(squares: Floats, lengths: Floats) -> tuple[Floats, Floats]:
    """The correlation at distances, and its slope apart from the distances of a column."""
    scaled = np.sqrt(3 * np.tensordot(1 / lengths**2, squares, 1))
    fading = np.exp(-scaled)
    return (1 + scaled) * fading, fading


def _relation(first: Codes, second: Codes) -> Floats:
    return np.where(first[:, None] == second[None, :], 1.0, _OTHER_GROUP)


def _covariance(
    first: Floats, second: Floats, codes: Codes, others: Codes, lengths: Floats, variances: Floats, intrinsic: list[int]
) -> Floats:
    squares, count = _distances(first, second), first.shape[1]
    whole = variances[0] * _matern(squares, lengths[:count])[0]
    return (whole + variances[1] * _matern(squares[intrinsic], lengths[count:])[0]) * _relation(codes, others)


def _learn(points: Floats, codes: Codes, left: Floats, intrinsic: list[int], like: Kriging | None) -> Floats:
    """Logarithms of the length scales, and of the standard deviations of both parts and of noise."""
    count, inner = points.shape[1], len(intrinsic)
    size = np.log(max(float(left.std()), 1e-3))
    middle = np.concatenate([np.full(count + inner, np.log(_LENGTH)), [size, size, size - np.log(2)]])
    spread = np.concatenate([np.full(count + inner, _LENGTH_SPREAD), np.ones(3)])
    squares, relation = _distances(points, points), _relation(codes, codes)
    own, diagonal = squares[intrinsic], np.diag_indices(len(left))

    def cost(vector: Floats) -> tuple[float, Floats]:
        lengths, variances = np.exp(vector[:-3]), np.exp(2 * vector[-3:])
        (whole, fading), (part, slow) = _matern(squares, lengths[:count]), _matern(own, lengths[count:])
        covariance = (variances[0] * whole + variances[1] * part) * relation
        covariance[diagonal] += variances[2] + _JITTER
        factor = dpotrf(covariance, lower=True, clean=True)[0]
        half = dpotri(factor, lower=True)[0]
        inverse = half + half.T
        inverse[diagonal] = half[diagonal]
        weights = inverse @ left
        away = (vector - middle) / spread
        value = 0.5 * left @ weights + np.log(factor[diagonal]).sum() + 0.5 * away @ away
        pull = np.outer(weights, weights) - inverse
        related = pull * relation
        slopes = np.concatenate([
            -1.5 * variances[0] * np.tensordot(squares, related * fading, 2) / lengths[:count] ** 2,
            -1.5 * variances[1] * np.tensordot(own, related * slow, 2) / lengths[count:] ** 2,
            [-variances[0] * (related * whole).sum(), -variances[1] * (related * part).sum()],
            [-variances[2] * np.trace(pull)],
        ])  # fmt: skip
        return float(value), slopes + away / spread

    bounds = [(-2.5, 5.0)] * (count + inner) + [(-12.0, 2.0)] * 3
    if like is None:
        begun, rounds = middle, _ROUNDS
    else:
        begun, rounds = np.log(np.concatenate([like.lengths, np.sqrt(like.variances)])), _FEW_ROUNDS
    return minimize(cost, begun, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": rounds}).x
