"""LossCurve: the loss of one worker by the samples that it has trained, as 1 / (a t + b) + c."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, least_squares

from cdmpp.errors import DataError, UsageError
from cdmpp.platform.content import content_of
from cdmpp.synchrony.processes.record import RunRecord, load_record

_COLUMNS = ("samples", "loss")
_LEAST_POINTS = 4
_STARTS = (0.0, 0.5, 0.9, 0.99)
"""Parts of the lowest loss from which the fit of the floor begins."""
_TOLERANCE = 1e-12

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class LossCurve:
    """The loss falls as ``1 / (a t + b) + c`` with the samples ``t`` (the curve that ADSP fits)."""

    a: float
    """Speed of the fall, from 0 up: per sample and unit of loss."""
    b: float
    """Inverse of the height above the floor at the start."""
    c: float
    """The floor, which the loss does not reach."""
    covariance: tuple[tuple[float, ...], ...] = ((0.0,) * 3,) * 3
    """Covariance of log a, log b and c, from the scatter of the points."""
    residual: float = 0.0
    """Root mean square distance of the points from the curve, in units of loss."""
    samples: float = math.inf
    """The last point was measured there: beyond it the curve is extrapolated."""

    def loss_at(self, samples: float) -> float:
        """Compute the loss after so many samples."""
        return 1 / (self.a * samples + self.b) + self.c

    def samples_to(self, loss: float) -> float:
        """Compute the samples after which the loss is reached; 0 where the start is below it.

        ``UsageError`` where it lies at or below the floor.
        """
        if loss <= self.c:
            raise UsageError(
                f"a loss of {loss:g} is never reached: the fitted curve falls to {self.c:.4g} at most. Give a target "
                "above it, or a loss curve that was measured for longer"
            )
        return max(0.0, (1 / (loss - self.c) - self.b) / self.a)

    def samples_interval(self, loss: float, draws: int = 2000, seed: int = 0) -> tuple[float, float]:
        """Compute the 90 % interval of ``samples_to`` from the scatter of the points; infinite where draws never reach.

        ``UsageError`` as of ``samples_to``.
        """
        self.samples_to(loss)
        mean = np.array([math.log(self.a), math.log(self.b), self.c])
        drawn = np.random.default_rng(seed).multivariate_normal(mean, np.array(self.covariance), draws, method="eigh")
        a, b, floor = np.exp(drawn[:, 0]), np.exp(drawn[:, 1]), drawn[:, 2]
        above = loss - floor
        reached = np.full(draws, math.inf)
        can = above > 0
        reached[can] = np.maximum(0.0, (1 / above[can] - b[can]) / a[can])
        low, high = np.quantile(reached, (0.05, 0.95), method="inverted_cdf")
        return float(low), float(high)


def fit_curve(samples: Sequence[float], loss: Sequence[float]) -> LossCurve:
    """Fit the curve to measured losses by least squares, all constants at 0 or above and the floor below the points.

    Args:
        samples: that were trained at each point; they rise.
        loss: at each point, above 0.

    Raises:
        DataError: fewer than four points, numbers that cannot be, a loss that does not fall.
    """
    t, y = np.asarray(samples, np.float64), np.asarray(loss, np.float64)
    if t.shape != y.shape or t.ndim != 1:
        raise DataError(f"a loss curve has {t.size} numbers of samples and {y.size} losses: expected as many of both")
    if t.size < _LEAST_POINTS:
        raise DataError(f"a loss curve has {t.size} points: expected at least {_LEAST_POINTS}, measure for longer")
    if not (np.isfinite(t).all() and np.isfinite(y).all() and t[0] >= 0 and (np.diff(t) > 0).all()):
        raise DataError("a loss curve needs finite numbers, and samples from 0 up that rise from point to point")
    if (y <= 0).any():
        raise DataError(f"a loss curve holds the loss {y.min():g}: the form 1 / (a t + b) + c needs losses above 0")
    third = max(1, t.size // 3)
    if y[-third:].mean() >= y[:third].mean():
        raise DataError(
            f"the loss does not fall: its mean is {y[:third].mean():.4g} over the first third of the points and "
            f"{y[-third:].mean():.4g} over the last. Measure for longer, or with another learning rate"
        )
    best = min((_fitted(t, y, start) for start in _STARTS), key=lambda one: one.cost)
    log_a, log_b, floor = best.x
    freedom = max(1, t.size - 3)
    scatter = 2 * best.cost / freedom
    covariance = np.linalg.pinv(best.jac.T @ best.jac) * scatter
    scale = np.array([1.0, 1.0, y.min()])
    covariance *= np.outer(scale, scale)
    return LossCurve(
        float(math.exp(log_a) / t[-1]),
        math.exp(log_b),
        float(floor * y.min()),
        tuple(tuple(float(value) for value in row) for row in covariance),
        float(math.sqrt(2 * best.cost / t.size)),
        float(t[-1]),
    )


def _fitted(t: FloatArray, y: FloatArray, start: float) -> OptimizeResult:
    """Fit log(a t_last), log b and the floor as a part of the lowest loss, which are all of the order of 1."""
    part, lowest = t / t[-1], y.min()

    def off(found: FloatArray) -> FloatArray:
        return np.asarray(1 / (math.exp(found[0]) * part + math.exp(found[1])) + found[2] * lowest - y)

    above = np.maximum(y - start * lowest, 1e-6 * lowest)
    first_b = 1 / above[0]
    first_a = max(1 / above[-1] - first_b, 1e-3 * first_b)
    bounds = ([-46.0, -46.0, 0.0], [46.0, 46.0, 1.0])
    at = [math.log(first_a), math.log(first_b), start]
    return least_squares(off, at, bounds=bounds, xtol=_TOLERANCE, ftol=_TOLERANCE, gtol=_TOLERANCE, max_nfev=4000)


def read_curve(file: Path | str) -> LossCurve:
    """Fit the curve of a CSV file with the columns ``samples`` and ``loss``, or of the record of a run, ``.json``.

    Raises:
        DataError: a file that cannot be read, and as of ``fit_curve``.
    """
    file = Path(file)
    if file.suffix == ".json":
        return curve_of(load_record(file), str(file))
    try:
        rows = list(
            csv.DictReader(io.StringIO(content_of(file).decode("utf-8-sig")), strict=True, skipinitialspace=True)
        )
        samples, loss = ([float(row[name]) for row in rows] for name in _COLUMNS)
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"cannot read {file}: expected a line {','.join(_COLUMNS)}, then numbers with a comma between two ({error})"
        ) from error
    return _named(str(file), samples, loss)


def _named(file: str, samples: Sequence[float], loss: Sequence[float]) -> LossCurve:
    try:
        return fit_curve(samples, loss)
    except DataError as error:
        raise DataError(f"{file}: {error}") from error


def curve_of(record: RunRecord, name: str) -> LossCurve:
    """Fit the curve of a run of one worker: of held-out losses where there are some, else of those of batches.

    ``name`` says in messages what the record is; ``DataError``: it is of more workers, and as of ``fit_curve``.
    """
    if len(record.workers) != 1:
        raise DataError(
            f"{name} is of {len(record.workers)} workers: a loss curve is that of one. Run the training with one worker"
        )
    for field in ("held_out_loss", "batch_loss"):
        seen = [(float(one.samples), loss) for one in record.losses if (loss := getattr(one, field)) is not None]
        if len(seen) >= _LEAST_POINTS:
            rising = [one for place, one in enumerate(seen) if not place or one[0] > seen[place - 1][0]]
            return _named(name, [samples for samples, _ in rising], [loss for _, loss in rising])
    raise DataError(f"{name} has fewer than {_LEAST_POINTS} losses: let the run last longer")
