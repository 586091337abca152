"""Scores of predictions beside baselines, and fits that leave the judged rows out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import linprog


def errors(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Return (predicted / measured - 1) in per cent, same shape."""
    return 100.0 * (np.asarray(predicted, float) / np.asarray(measured, float) - 1.0)


def cell(predicted: np.ndarray, measured: np.ndarray) -> str:
    """Write the mean and the median of absolute errors in per cent."""
    found = np.abs(errors(predicted, measured))
    return f"{found.mean():.1f} ({np.median(found):.1f})"


def least_absolute(columns: np.ndarray, fixed: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Fit ``columns @ factors + fixed`` to what was measured: the least sum of absolute relative errors.

    Args:
        columns: (n, k), seconds or bytes of each part of each row.
        fixed: (n,), what no factor changes.
        measured: (n,), above 0.

    Returns:
        (k,) factors of 0 or more. A linear programme: one far row moves them little.
    """
    rows, count = columns.shape
    relative = columns / measured[:, None]
    scale = np.where((largest := np.abs(relative).max(axis=0)) > 0, largest, 1.0)
    parts, rest = relative / scale, 1.0 - fixed / measured
    slack = -np.eye(rows)
    found = linprog(
        np.concatenate([np.zeros(count), np.ones(rows)]),
        A_ub=np.block([[parts, slack], [-parts, slack]]),
        b_ub=np.concatenate([rest, -rest]),
        bounds=[(0, None)] * (count + rows),
        method="highs",
    )
    return found.x[:count] / scale


def left_out(groups: Sequence[object], predict: Callable[[np.ndarray, int], float]) -> np.ndarray:
    """Predict each row by a fit that saw no row of its group.

    Args:
        groups: (n,), a row is judged without all rows of its group.
        predict: (n,) mask of the rows that may be seen, and the number of the judged row -> prediction.
    """
    return np.array([predict(np.array([other != own for other in groups]), i) for i, own in enumerate(groups)])
