"""Front: the results that no other one beats in every respect."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def on_front(costs: Sequence[Sequence[float]]) -> NDArray[np.bool_]:
    """Return which rows are on the Pareto front: no other row is as low in all columns, and lower in one.

    Args:
        costs: a row a result, a column a quantity that should be low.
    """
    values = np.asarray(costs, np.float64).reshape(len(costs), -1)
    first, second = values[:, None, :], values[None, :, :]
    beats = (first <= second).all(axis=2) & (first < second).any(axis=2)
    return np.asarray(~beats.any(axis=0), np.bool_)
