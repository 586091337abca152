"""Unseen: what a model gets wrong on devices that it never saw, told by models that went without one of its cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.errors import DataError
from cdmpp.uncertainty.conformal import LEVELS

_METRICS = ("mape", "median_ape")
_BLIND = "bounds_without_code"


@dataclass(frozen=True)
class Unseen:
    """Errors of every unit of devices, mostly all those with one core, by a model that had no record of it."""

    units: Mapping[str, Mapping[str, float]]
    """Name of a unit -> ``mape`` and ``median_ape`` of its programs, percent."""
    bounds: Mapping[float, tuple[float, float]]
    """Level -> range of log(measured / predicted) that holds so large a share of the programs of an average unit."""
    without_code: Mapping[float, tuple[float, float]] | None = None
    """The same of answers without the machine code that the model reads; None: nothing is known of them."""

    def intervals(
        self, log_prediction: np.ndarray, without: np.ndarray | None = None
    ) -> dict[float, tuple[np.ndarray, np.ndarray]]:
        """Level -> (n,) lower and (n,) upper bounds in seconds, of (n,) natural-log seconds.

        ``without`` (n,) bool: answered without the machine code that the model reads; NaN where nothing is known then.
        """
        blind, found = self.without_code or dict.fromkeys(self.bounds, (np.nan, np.nan)), {}
        for level, pair in self.bounds.items():
            low, high = pair if without is None else np.where(without[:, None], blind[level], pair).T
            found[level] = (np.exp(log_prediction + low), np.exp(log_prediction + high))
        return found

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
        told: dict[str, Any] = {"units": {name: dict(m) for name, m in self.units.items()}, "bounds": bounds}
        if self.without_code is not None:
            told[_BLIND] = {str(level): list(pair) for level, pair in self.without_code.items()}
        return told

    @staticmethod
    def restore(settings: Mapping[str, Any]) -> Unseen:
        """From ``settings`` of another one; ``DataError`` names what cannot be."""
        try:
            units = {str(name): {key: float(m[key]) for key in _METRICS} for name, m in settings["units"].items()}
            pairs = _pairs(settings["bounds"])
            blind = None if settings.get(_BLIND) is None else _pairs(settings[_BLIND])
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise DataError(f"not errors of left-out devices: {error!r}") from error
        numbers = [
            *(value for m in units.values() for value in m.values()),
            *(v for bounds in (pairs, blind or {}) for pair in bounds.values() for v in pair),
        ]
        levels = [set(bounds) == set(LEVELS) for bounds in (pairs, blind) if bounds is not None]
        ordered = all(low <= 0 <= high for bounds in (pairs, blind or {}) for low, high in bounds.values())
        if not units or not all(levels) or not np.isfinite(numbers).all() or not ordered:
            raise DataError(f"errors of left-out devices need units and bounds around 0 for the levels {LEVELS}")
        return Unseen(units, pairs, blind)


def _pairs(settings: Mapping[str, Any]) -> dict[float, tuple[float, float]]:
    return {float(level): (float(low), float(high)) for level, (low, high) in settings.items()}


def fit_unseen(
    metrics: Mapping[str, Mapping[str, float]],
    log_residuals: Mapping[str, np.ndarray],
    task_ids: Mapping[str, np.ndarray],
    without_code: Mapping[str, np.ndarray] | None = None,
) -> Unseen:
    """By unit: test metrics, (m,) log(measured / predicted), (m,) tasks. Units weigh the same, so do their tasks.

    ``without_code``: as ``log_residuals``, of the answers without machine code.
    """
    kept = {name: {key: float(m[key]) for key in _METRICS} for name, m in metrics.items()}
    blind = None if without_code is None else _bounds(without_code, task_ids)
    return Unseen(kept, _bounds(log_residuals, task_ids), blind)


def _bounds(
    log_residuals: Mapping[str, np.ndarray], task_ids: Mapping[str, np.ndarray]
) -> dict[float, tuple[float, float]]:
    residuals = np.concatenate(list(log_residuals.values()))
    weights = np.concatenate([task_weights(task_ids[name]) for name in log_residuals])
    bounds = {}
    for level in LEVELS:
        tails = np.quantile(residuals, [(1 - level) / 2, (1 + level) / 2], weights=weights, method="inverted_cdf")
        bounds[level] = (min(0.0, float(tails[0])), max(0.0, float(tails[1])))
    return bounds


def task_weights(tasks: np.ndarray) -> np.ndarray:
    """(m,) that add up to 1, the same for each of the (m,) tasks."""
    _, which, sizes = np.unique(tasks, return_inverse=True, return_counts=True)
    return 1 / sizes[which] / len(sizes)
