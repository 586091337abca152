"""Prediction intervals on test programs: how often the measured latency lies inside, and how wide they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def coverage(
    true_s: np.ndarray, intervals: Mapping[float, tuple[np.ndarray, np.ndarray]], task_ids: Sequence[str] | np.ndarray
) -> dict[str, dict[str, float]]:
    """Return by level, such as ``"0.8"``, percent of programs inside, their mean over tasks, median width.

    The width is the ratio of upper to lower bound; the tasks' shares are what calibration by task promises.
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
