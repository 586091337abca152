"""Scores of predicted bytes: errors, and how often and how far they are low, which is what a user runs into."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

HEADS = ("rows", "mean error, %", "median, %", "90 % below, %", "within 5 %, %", "lowest, %", "more than 3 % low")


def cells(predicted: ArrayLike, measured: ArrayLike) -> list[str]:
    """Write the scores under ``HEADS``."""
    signed = 100 * (np.asarray(predicted, float) / np.asarray(measured, float) - 1)
    away = np.abs(signed)
    return [
        str(len(signed)), f"{away.mean():.1f}", f"{np.median(away):.1f}", f"{np.percentile(away, 90):.1f}",
        f"{100 * (away <= 5).mean():.0f}", f"{signed.min():+.1f}", str(int((signed < -3).sum())),
    ]  # fmt: skip
