"""A part of many programs where all of them would only cost memory."""

from __future__ import annotations

import numpy as np

STATISTICS_PROGRAMS = 24_576
"""Most training programs that scalers and bins are fitted on, else a sample: means and quantiles need no more."""


def sample_rows(rows: np.ndarray, most: int) -> np.ndarray:
    """Choose at most ``most`` of ``rows``, in order, always the same."""
    if len(rows) <= most:
        return np.asarray(rows)
    return np.sort(np.random.default_rng(0).choice(rows, most, replace=False))
