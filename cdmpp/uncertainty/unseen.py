"""Unseen: what a model gets wrong on devices that it never saw, told by models that went without one of its cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.errors import DataError
from cdmpp.uncertainty.calibration import LOCAL_INPUTS, choose
from cdmpp.uncertainty.conformal import FITTED_TASKS, FOLDS, LEVELS
from cdmpp.uncertainty.local_scale import LocalScale, fit_crosswise

_METRICS = ("mape", "median_ape")
_BLIND, _SCALE = "bounds_without_code", "scale"


@dataclass(frozen=True)
class UnitErrors:
    """A model without a record of a unit of devices has these errors on ``m`` programs of it."""

    log_residuals: np.ndarray
    """(m,) log of measured over predicted latency."""
    inputs: np.ndarray
    """(m, d) what the size of an error may depend on, see ``calibration.scale_inputs``."""
    task_ids: np.ndarray
    """(m,) the tasks that the programs implement."""


@dataclass(frozen=True)
class Bounds:
    """The log(measured / predicted) of a device not trained on lies in this range, in multiples of a local scale."""

    levels: Mapping[float, tuple[float, float]]
    """Level -> range that holds so large a share of the programs of an average unit."""
    scale: LocalScale | None = None
    """Growth of errors with distance from the training programs; None: they do not, and the range is in log-latency."""

    def intervals(
        self, log_prediction: np.ndarray, inputs: np.ndarray | None
    ) -> dict[float, tuple[np.ndarray, np.ndarray]]:
        """Return (n,) bounds, lower and upper, in seconds by level; NaN where ``inputs`` (n, d) are missing."""
        factor: np.ndarray | float = 1.0
        if self.scale is not None:
            factor = np.full(len(log_prediction), np.nan) if inputs is None else self.scale(inputs)
        return {
            level: (np.exp(log_prediction + low * factor), np.exp(log_prediction + high * factor))
            for level, (low, high) in self.levels.items()
        }

    def settings(self) -> dict[str, Any]:
        """Return the object as plain JSON."""
        told: dict[str, Any] = {str(level): list(pair) for level, pair in self.levels.items()}
        if self.scale is not None:
            told[_SCALE] = {name: values.tolist() for name, values in vars(self.scale).items()}
        return told

    @staticmethod
    def restore(settings: Mapping[str, Any]) -> Bounds:
        """Restore from ``settings`` of another one; ``DataError`` or what Python raises where they cannot be."""
        pairs = {float(k): (float(v[0]), float(v[1])) for k, v in settings.items() if k != _SCALE}
        numbers, scale = [v for pair in pairs.values() for v in pair], None
        if (stored := settings.get(_SCALE)) is not None:
            arrays = {name: np.array(values, np.float64) for name, values in stored.items()}
            scale = LocalScale(**arrays)
            wide = [(len(a),) == (LOCAL_INPUTS + (name == "coefficients"),) for name, a in arrays.items()]
            if not all(wide) or not (scale.deviation > 0).all():
                raise DataError(f"a local scale needs {LOCAL_INPUTS} inputs with positive deviations")
            numbers += [v for array in arrays.values() for v in array.tolist()]
        ordered = all(low <= 0 <= high for low, high in pairs.values())
        if set(pairs) != set(LEVELS) or not np.isfinite(numbers).all() or not ordered:
            raise DataError(f"errors of left-out devices need bounds around 0 for the levels {LEVELS}")
        return Bounds(pairs, scale)


@dataclass(frozen=True)
class Unseen:
    """A model without a record of a unit has these errors; units are mostly all devices with one core."""

    units: Mapping[str, Mapping[str, float]]
    """Name of a unit -> ``mape`` and ``median_ape`` of its programs, percent."""
    bounds: Bounds
    without_code: Bounds | None = None
    """The same of answers without the machine code that the model reads; None: nothing is known of them."""

    def intervals(
        self, log_prediction: np.ndarray, inputs: np.ndarray | None, without: np.ndarray
    ) -> dict[float, tuple[np.ndarray, np.ndarray]]:
        """Return (n,) bounds, lower and upper, by level, of (n,) natural-log seconds; NaN where none are known.

        ``inputs`` (n, d): see ``UnitErrors``; ``without`` (n,) bool: answered without the machine code that the model
        reads.
        """
        nothing = np.full(len(log_prediction), np.nan)
        blind: Mapping[float, tuple[np.ndarray, np.ndarray]] = dict.fromkeys(LEVELS, (nothing, nothing))
        if self.without_code is not None and without.any():
            blind = self.without_code.intervals(log_prediction, inputs)
        return choose(without, blind, self.bounds.intervals(log_prediction, inputs))

    def expected(self, device: str, calibrated: bool = False) -> str:
        """Say which error to expect on ``device``; ``calibrated``: a few of its kernels were timed."""
        told = ", ".join(f"{name} {m['mape']:.0f} % (median {m['median_ape']:.0f})" for name, m in self.units.items())
        worst = max(self.units, key=lambda name: self.units[name]["mape"])
        known = "a few timed kernels bring it nearer" if calibrated else "of which nothing was measured"
        return (
            f"Predicted by models without any record of it, its cores were off on average by: {told}; expect up to "
            f"what {worst} shows on {device}, {known}"
        )

    def settings(self) -> dict[str, Any]:
        """Return the object as plain JSON."""
        told = {"units": {name: dict(m) for name, m in self.units.items()}, "bounds": self.bounds.settings()}
        return told | ({} if self.without_code is None else {_BLIND: self.without_code.settings()})

    @staticmethod
    def restore(settings: Mapping[str, Any]) -> Unseen:
        """Restore from ``settings`` of another one; ``DataError`` names what cannot be."""
        try:
            units = {str(name): {key: float(m[key]) for key in _METRICS} for name, m in settings["units"].items()}
            bounds = Bounds.restore(settings["bounds"])
            blind = None if settings.get(_BLIND) is None else Bounds.restore(settings[_BLIND])
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise DataError(f"not errors of left-out devices: {error!r}") from error
        if not units or not np.isfinite([value for m in units.values() for value in m.values()]).all():
            raise DataError("errors of left-out devices need units with finite errors")
        return Unseen(units, bounds, blind)


def fit_unseen(
    metrics: Mapping[str, Mapping[str, float]],
    errors: Mapping[str, UnitErrors],
    without_code: Mapping[str, UnitErrors] | None = None,
) -> Unseen:
    """Fit to metrics and errors by unit, and errors of answers without machine code. Units weigh the same."""
    kept = {name: {key: float(m[key]) for key in _METRICS} for name, m in metrics.items()}
    return Unseen(kept, fit_bounds(errors), None if without_code is None else fit_bounds(without_code))


def fit_bounds(errors: Mapping[str, UnitErrors]) -> Bounds:
    """Fit to errors by unit, which weigh the same, and so do a unit's tasks.

    The scale that makes a unit's scores is fitted to the others, as it is for a new device; of a single unit to folds
    of its tasks. A new unit lies farther from the mean of K known ones than each of them does, since each pulls the
    mean to itself: variances 1 + 1/K and 1 - 1/K of that between units, so the units are moved apart by their ratio.
    """
    residuals, inputs = (
        np.concatenate([getattr(one, key) for one in errors.values()]) for key in ("log_residuals", "inputs")
    )
    unit = np.repeat(np.arange(len(errors)), [len(one.task_ids) for one in errors.values()])
    weights = np.concatenate([task_weights(one.task_ids) for one in errors.values()])
    names = [f"{name}/{task}" for name, one in errors.items() for task in one.task_ids]
    tasks = np.unique(names, return_inverse=True)[1]
    scores, scale = residuals, None
    if (n_tasks := int(tasks.max()) + 1) >= FITTED_TASKS:
        folds = unit if len(errors) > 1 else tasks % FOLDS
        scale, factors = fit_crosswise(residuals, inputs, weights * n_tasks / len(errors), folds)
        scores = residuals / factors
    if (units := len(errors)) > 1:
        middles = np.bincount(unit, weights * scores)  # a unit's weights add up to 1
        scores = scores + ((middles - middles.mean()) * (np.sqrt((units + 1) / (units - 1)) - 1))[unit]
    bounds = {}
    for level in LEVELS:
        tails = np.quantile(scores, [(1 - level) / 2, (1 + level) / 2], weights=weights, method="inverted_cdf")
        bounds[level] = (min(0.0, float(tails[0])), max(0.0, float(tails[1])))
    return Bounds(bounds, scale)


def task_weights(tasks: np.ndarray) -> np.ndarray:
    """Return (m,) weights that add up to 1, the same for each of the (m,) tasks."""
    _, which, sizes = np.unique(tasks, return_inverse=True, return_counts=True)
    return 1 / sizes[which] / len(sizes)
