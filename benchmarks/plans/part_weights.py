"""Weights of the predicted parts of steps: of 0 or more, by relative errors, drawn to what they are before a fit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Floats = NDArray[np.float64]
_PULLS = (0.05, 0.1, 0.2, 0.4)
"""Counts of the weights' own values against all rows, of which one is chosen."""
_ALONE = 0.1
"""The same where all rows are of one fold, so that nothing chooses."""
_LEAST, _FAR, _ROUNDS = 0.02, 0.05, 10
"""Share of a step below which a part counts as so much; error beyond which a row counts less; rounds of a fit."""


def part_weights(parts: Floats, measured_s: Floats, prior: Floats, folds: NDArray[np.generic]) -> Floats:
    """Fit weights; far rows count less.

    Args:
        parts: (rows, parts) seconds, or numbers of what takes as many seconds as its weight.
        measured_s: (rows,).
        prior: (parts,) weights before the fit.
        folds: (rows,) fold of each row: weights are drawn to ``prior`` by as much as predicts each fold best by the
            others.
    """
    return _weights(parts, measured_s, prior, _pull(parts, measured_s, prior, folds))


def _weights(parts: Floats, measured_s: Floats, prior: Floats, pull: float) -> Floats:
    shares = parts / measured_s[:, np.newaxis]
    kept = pull * np.sqrt(len(measured_s)) * np.diag(np.maximum(shares.mean(axis=0), _LEAST))
    counts, found = np.ones(len(measured_s)), prior
    for _ in range(_ROUNDS):
        found, _ = nnls(np.vstack([shares * counts[:, np.newaxis], kept]), np.concatenate([counts, kept @ prior]))
        counts = 1 / np.sqrt(np.maximum(np.abs(shares @ found - 1), _FAR) / _FAR)
    return found


def _pull(parts: Floats, measured_s: Floats, prior: Floats, folds: NDArray[np.generic]) -> float:
    errors = dict[float, float]()
    for pull in _PULLS:
        off = list[Floats]()
        for one in dict.fromkeys(folds.tolist()):
            own = folds == one
            if own.all():
                return _ALONE
            off.append(parts[own] @ _weights(parts[~own], measured_s[~own], prior, pull) / measured_s[own] - 1)
        errors[pull] = float(np.abs(np.concatenate(off)).mean())
    return min(errors, key=lambda pull: errors[pull])
