"""Distance of a program from the training programs: what a model says about such programs deserves less trust.

Two distances, each over the border that 99 % of the validation programs keep to; the larger one counts. In the model's
own eyes: Mahalanobis distance of the last hidden vector under probabilistic principal components of the training
programs (Tipping and Bishop, J. R. Stat. Soc. B 1999). And blind to the model, which clips its inputs: how many
standard deviations any input number lies outside the range of the training programs.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from cdmpp.errors import DataError
from cdmpp.model.native import native_network

COMPONENTS = 32
BORDER_SHARE = 0.99
_SMALLEST_DEVIATION = 0.25  # of an input number; most are logarithms to base 2, and one that never varied has no scale
_SMALLEST_EXCESS = 1.0  # border of the second distance at least: a little beyond the range is no new kind


class _Tables(ctypes.Structure):
    """A ``Novelty`` as the compiled library reads it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "mean", "directions", "variances", "largest", "smallest", "factor")),
        *((name, ctypes.c_int64) for name in ("n_hidden", "n_components", "n_facts")),
    )  # fmt: skip


@dataclass(frozen=True)
class ProgramSketch:
    """Programs are compared by these facts: cheap by-products of a prediction of n programs."""

    hidden: np.ndarray
    """(n, H) last hidden vector of the model."""
    largest: np.ndarray
    """(n, F) largest value of each leaf and kernel number over the program, as ``smallest``."""
    smallest: np.ndarray


@dataclass(frozen=True)
class Novelty:
    """It knows where training programs lie among H hidden and F input numbers, and how far from there is too far."""

    mean: np.ndarray
    """(H,) of the training programs' hidden vectors."""
    directions: np.ndarray
    """(C, H) float32, orthonormal principal directions; the other arrays are float64."""
    variances: np.ndarray
    """(C + 1,) along them; the last one is that of any other direction."""
    largest: np.ndarray
    """(F,) of the training programs' input numbers, as ``smallest`` and ``deviation``."""
    smallest: np.ndarray
    deviation: np.ndarray
    borders: np.ndarray
    """(2,) of the hidden distance and of the input excess."""
    grid: np.ndarray
    """(201,) quantiles of the validation programs' scores, from the smallest to the largest."""
    border: np.ndarray
    """() score that a share ``BORDER_SHARE`` of the validation programs keeps to."""

    def distance(self, hidden: np.ndarray) -> np.ndarray:
        """Return the (n,) Mahalanobis distance of (n, H) hidden vectors over the root of H: about 1 in training."""
        rows, found = np.ascontiguousarray(hidden, np.float32), np.empty(len(hidden))
        self._check(rows, self.mean)
        place = ctypes.byref(self._tables[0])
        native_network().network_compare(place, rows.ctypes.data, None, None, len(rows), found.ctypes.data, None)
        return found

    def excess(self, sketch: ProgramSketch) -> np.ndarray:
        """Return (n,) standard deviations by which the worst input number leaves the training range; 0 inside."""
        rows = [np.ascontiguousarray(side, np.float32) for side in (sketch.largest, sketch.smallest)]
        for side in rows:
            self._check(side, self.largest)
        found, places = np.empty(len(rows[0])), [side.ctypes.data for side in rows]
        place = ctypes.byref(self._tables[0])
        native_network().network_compare(place, None, *places, len(found), None, found.ctypes.data)
        return found

    @cached_property
    def _tables(self) -> tuple[_Tables, list[np.ndarray]]:
        """These tables, and the arrays that they point at."""
        arrays = [
            np.ascontiguousarray(values, np.float64)
            for values in (
                self.mean, self.directions.T, self.variances, self.largest, self.smallest, 1.0 / self.deviation)
        ]  # fmt: skip
        sizes = len(self.mean), len(self.directions), len(self.largest)
        return _Tables(*(array.ctypes.data for array in arrays), *sizes), arrays

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made of, without places in memory."""
        return {name: value for name, value in vars(self).items() if name != "_tables"}

    @staticmethod
    def _check(rows: np.ndarray, own: np.ndarray) -> None:
        if rows.ndim != 2 or rows.shape[1] != len(own):
            raise DataError(f"a novelty score of {len(own)} numbers a program, given an array of shape {rows.shape}")

    def score(self, sketch: ProgramSketch) -> np.ndarray:
        """Return (n,) the larger of both distances in units of their borders."""
        return np.maximum(self.distance(sketch.hidden) / self.borders[0], self.excess(sketch) / self.borders[1])

    def share_nearer(self, score: np.ndarray) -> np.ndarray:
        """Return the (n,) share of validation programs with a smaller score: 0 nothing is as near, 1 nothing as far."""
        return np.interp(score, self.grid, _shares(len(self.grid)), left=0.0, right=1.0)

    def unlike(self, score: np.ndarray) -> np.ndarray:
        """Return (n,) True: farther from training than the border."""
        return np.asarray(score) > self.border


@lru_cache(maxsize=8)
def _shares(n: int) -> np.ndarray:
    return np.linspace(0, 1, n)


def fit_novelty(training: ProgramSketch, validation: ProgramSketch) -> Novelty:
    """Fit directions and ranges to training programs, borders to validation programs; neither may be empty."""
    hidden = np.asarray(training.hidden, np.float64)
    mean, width = hidden.mean(0), hidden.shape[1]
    covariance = (hidden - mean).T @ (hidden - mean) / len(hidden)
    values, vectors = np.linalg.eigh(covariance)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    # Fewer programs than directions would leave no variance for the rest.
    count = min(COMPONENTS, width // 2, max(0, (len(hidden) - 1) // 2))
    rest = max(float(values[count:].mean()), 1e-6 * float(values.mean()), 1e-12)
    variances = np.append(np.maximum(values[:count], rest), rest)
    directions = np.ascontiguousarray(vectors[:, :count].T).astype(np.float32)
    largest, smallest = (np.asarray(x, np.float64) for x in (training.largest.max(0), training.smallest.min(0)))
    deviation = np.maximum(training.largest.std(0).astype(np.float64), _SMALLEST_DEVIATION)
    blank = Novelty(mean, directions, variances, largest, smallest, deviation, np.ones(2), np.zeros(1), np.ones(()))
    both = blank.distance(validation.hidden), blank.excess(validation)
    borders = np.maximum(np.quantile(both, BORDER_SHARE, axis=1), [1e-6, _SMALLEST_EXCESS])
    scores = replace(blank, borders=borders).score(validation)
    grid, border = np.quantile(scores, np.linspace(0, 1, 201)), np.quantile(scores, BORDER_SHARE)
    return replace(blank, borders=borders, grid=grid, border=np.asarray(border))
