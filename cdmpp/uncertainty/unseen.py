"""Unseen: what a model gets wrong on devices that it never saw, told by models that went without one of its cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.errors import DataError
from cdmpp.uncertainty.conformal import LEVELS

_METRICS = ("mape", "median_ape")


@dataclass(frozen=True)
class Unseen:
    """Errors of every unit of devices, mostly all those with one core, by a model that had no record of it."""

    units: Mapping[str, Mapping[str, float]]
    """Name of a unit -> ``mape`` and ``median_ape`` of its programs, percent."""
    bounds: Mapping[float, tuple[float, float]]
    """Level -> range of log(measured / predicted) that holds so large a share of the programs of an average unit."""

    def intervals(self, log_prediction: np.ndarray) -> dict[float, tuple[np.ndarray, np.ndarray]]:
        """Level -> (n,) lower and (n,) upper bounds in seconds, of (n,) natural-log seconds."""
        return {
            level: (np.exp(log_prediction + low), np.exp(log_prediction + high))
            for level, (low, high) in self.bounds.items()
        }

    def widened(
        self, known: Mapping[float, tuple[np.ndarray, np.ndarray]], log_prediction: np.ndarray, rows: np.ndarray
    ) -> dict[float, tuple[np.ndarray, np.ndarray]]:
        """The intervals ``known`` with those of an unknown device at ``rows``, (n,) bool."""
        unseen = self.intervals(log_prediction)
        return {
            level: (np.where(rows, unseen[level][0], low), np.where(rows, unseen[level][1], high))
            for level, (low, high) in known.items()
        }

    def expected(self, device: str, calibrated: bool = False) -> str:
        """What to expect on ``device``, in a sentence; ``calibrated``: a few of its kernels were timed."""
        told = ", ".join(f"{name} {m['mape']:.0f} % (median {m['median_ape']:.0f})" for name, m in self.units.items())
        worst = max(self.units, key=lambda name: self.units[name]["mape"])
        known = "a few timed kernels bring it nearer" if calibrated else "of which nothing was measured"
        return (
            f"Predicted by models without any record of it, its cores were off on average by: {told}; expect up to "
            f"what {worst} shows on {device}, {known}"
        )

    def settings(self) -> dict[str, Any]:
        """As plain JSON."""
        bounds = {str(level): list(pair) for level, pair in self.bounds.items()}
        return {"units": {name: dict(metrics) for name, metrics in self.units.items()}, "bounds": bounds}

    @staticmethod
    def restore(settings: Mapping[str, Any]) -> Unseen:
        """From ``settings`` of another one; ``DataError`` names what cannot be."""
        try:
            units = {str(name): {key: float(m[key]) for key in _METRICS} for name, m in settings["units"].items()}
            pairs = {float(level): (float(low), float(high)) for level, (low, high) in settings["bounds"].items()}
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise DataError(f"not errors of left-out devices: {error!r}") from error
        numbers = [
            *(value for m in units.values() for value in m.values()),
            *(v for pair in pairs.values() for v in pair),
        ]
        ordered = all(low <= 0 <= high for low, high in pairs.values())
        if not units or set(pairs) != set(LEVELS) or not np.isfinite(numbers).all() or not ordered:
            raise DataError(f"errors of left-out devices need units and bounds around 0 for the levels {LEVELS}")
        return Unseen(units, pairs)


def fit_unseen(
    metrics: Mapping[str, Mapping[str, float]],
    log_residuals: Mapping[str, np.ndarray],
    task_ids: Mapping[str, np.ndarray],
) -> Unseen:
    """By unit: test metrics, (m,) log(measured / predicted), (m,) tasks. Units weigh the same, so do their tasks."""
    residuals = np.concatenate(list(log_residuals.values()))
    weights = np.concatenate([task_weights(task_ids[name]) for name in log_residuals])
    bounds = {}
    for level in LEVELS:
        tails = np.quantile(residuals, [(1 - level) / 2, (1 + level) / 2], weights=weights, method="inverted_cdf")
        bounds[level] = (min(0.0, float(tails[0])), max(0.0, float(tails[1])))
    kept = {name: {key: float(m[key]) for key in _METRICS} for name, m in metrics.items()}
    return Unseen(kept, bounds)


def task_weights(tasks: np.ndarray) -> np.ndarray:
    """(m,) that add up to 1, the same for each of the (m,) tasks."""
    _, which, sizes = np.unique(tasks, return_inverse=True, return_counts=True)
    return 1 / sizes[which] / len(sizes)
