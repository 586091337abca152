"""Prediction intervals on test programs: how often the measured latency lies inside, and how wide they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cdmpp.data.splits import Split
from cdmpp.evaluation.evaluation_data import Baseline, EvaluationData
from cdmpp.uncertainty.conformal import fit_conformal

Intervals = Mapping[float, tuple[np.ndarray, np.ndarray]]
"""(m,) lower and (m,) upper bounds in seconds by level."""


@dataclass(frozen=True)
class Forecast:
    """What a model says of m test programs."""

    latency_s: np.ndarray
    intervals: Intervals = field(default_factory=dict)
    """Empty for models without."""


def conformal_forecast(baseline: Baseline, data: EvaluationData, split: Split) -> Forecast:
    """Of a fitted baseline, with intervals of one width for all programs, calibrated on ``split.validation``."""
    dataset, rows = data.dataset, split.validation
    conformal = fit_conformal(
        np.log(baseline.predict(data, rows)), np.log(dataset.latency_s[rows]), np.asarray(dataset.task_ids)[rows]
    )
    predicted = baseline.predict(data, split.test)
    return Forecast(
        predicted, {level: conformal.interval(np.log(predicted), level=level) for level in conformal.levels}
    )


def coverage(
    true_s: np.ndarray, intervals: Intervals, task_ids: Sequence[str] | np.ndarray
) -> dict[str, dict[str, float]]:
    """By level, such as ``"0.8"``: percentages of programs inside and the median width.

    Returns:
        ``coverage`` over programs, ``task_coverage`` the mean of the tasks' shares (what calibration by task promises),
        ``width`` the median ratio of upper to lower bound.
    """
    _, which = np.unique(np.asarray(task_ids), return_inverse=True)
    result = {}
    for level, (lower, upper) in sorted(intervals.items()):
        inside = (lower <= true_s) & (true_s <= upper)
        result[str(level)] = {
            "coverage": 100 * float(inside.mean()),
            "task_coverage": 100 * float((np.bincount(which, inside) / np.bincount(which)).mean()),
            "width": float(np.median(upper / lower)),
        }
    return result
