"""The expected size of a program's error: one smooth factor per program, learned from a few inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

RIDGE_TASKS = 5.0  # pull of the coefficients towards zero: with few tasks the scale stays flat
_FLOOR = 1e-3  # smallest residual that counts, in log units: labels repeat no better
_LARGEST_RATIO = 5.0  # of a residual to its expectation, so that a few wild ones do not decide the fit


@dataclass(frozen=True)
class LocalScale:
    """The expected residual, up to a factor, is exp(coefficients . standardised inputs (d,)), clipped to those seen."""

    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    coefficients: np.ndarray
    """(d + 1,) of the constant and of the standardised inputs."""

    @staticmethod
    def flat(inputs: np.ndarray, weights: np.ndarray) -> LocalScale:
        """Make the scale 1 everywhere, with the range of the ``inputs`` (n, d) of programs with ``weights`` (n,)."""
        mean = np.average(inputs, axis=0, weights=weights)
        deviation = np.sqrt(np.average((inputs - mean) ** 2, axis=0, weights=weights))
        deviation = np.where(deviation > 1e-9, deviation, 1.0)
        return LocalScale(inputs.min(0), inputs.max(0), mean, deviation, np.zeros(inputs.shape[1] + 1))

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """(n,) positive factors of the programs with ``inputs`` (n, d)."""
        return np.exp(self.design(inputs) @ self.coefficients)

    def design(self, inputs: np.ndarray) -> np.ndarray:
        """Join ones and the standardised ``inputs`` (n, d): (n, d + 1)."""
        standard = (np.clip(inputs, self.low, self.high) - self.mean) / self.deviation
        return np.concatenate([np.ones((len(standard), 1)), standard], axis=1)


def fit_crosswise(
    residuals: np.ndarray, inputs: np.ndarray, weights: np.ndarray, folds: np.ndarray
) -> tuple[LocalScale, np.ndarray]:
    """Fit the scale to predict with, and for each program the scale without its fold.

    Dividing a residual by a scale that has seen it would make the scores too small. ``residuals`` (n,) and ``inputs``
    (n, d) are finite, the ``weights`` (n,) of a task add up to 1, and its programs are in one of the ``folds`` (n,).
    """
    flat = LocalScale.flat(inputs, weights)
    design, sizes = flat.design(inputs), np.maximum(np.abs(residuals), _FLOOR)
    left_out, fitted = np.empty(len(residuals)), []
    for fold in np.unique(folds):
        own = folds == fold
        coefficients = _fit(sizes[~own], design[~own], weights[~own])
        coefficients[0] = 0.0  # what all errors have in common is for the bounds to say: it differs between folds
        left_out[own] = np.exp(design[own] @ coefficients)
        fitted.append(coefficients)
    return replace(flat, coefficients=np.mean(fitted, axis=0)), left_out


def _fit(sizes: np.ndarray, design: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Gamma regression with a log link by Fisher scoring: unlike least squares on the logarithm it ignores zeros."""
    pull = RIDGE_TASKS * np.eye(design.shape[1])
    pull[0, 0] = 0.0
    information = (design * weights[:, None]).T @ design + pull
    coefficients = np.zeros(design.shape[1])
    coefficients[0] = np.log(np.average(sizes, weights=weights))
    for _ in range(100):
        ratio = np.minimum(sizes * np.exp(-design @ coefficients), _LARGEST_RATIO)
        # Half steps: the information is that of the unclipped ratio.
        coefficients += 0.5 * np.linalg.solve(information, design.T @ (weights * (ratio - 1)) - pull @ coefficients)
    return coefficients
