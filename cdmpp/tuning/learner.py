"""Learner: what measured programs say beyond a trained model, learned between two batches of a search.

A Gaussian process over what the model gets wrong, in log-latency. Its mean is zero, so that far from everything
measured the trained model stands as it is: nothing is forgotten. Its terms are an offset of the device, one of each
task, and smooth functions of a program's features, shared by all tasks and of each task only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import cho_solve, cholesky

_MOST = 768
"""Programs that are learned from: solving for them takes 20 ms. The task at hand goes first, then the latest."""


@dataclass(frozen=True)
class Weights:
    """Each term may explain so large a standard deviation of log-latency."""

    device: float = 0.2
    task: float = 1.0
    shared: float = 0.15
    """Standard deviation of what features explain in all tasks alike."""
    own: float = 1.0
    """Standard deviation of what features explain in one task."""
    noise: float = 0.05


@dataclass
class Learner:
    """It grows by ``learn``; ``expected`` then says what to add to the model's log-latency of other programs."""

    weights: Weights = field(default_factory=Weights)
    features: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    """(n, width)"""
    errors: np.ndarray = field(default_factory=lambda: np.empty(0))
    """(n,) log of measured over predicted latency."""
    tasks: np.ndarray = field(default_factory=lambda: np.empty(0, object))
    _last: tuple[np.ndarray, tuple[str, Weights], _Solved] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def __len__(self) -> int:
        return len(self.errors)

    def learn(self, features: np.ndarray, errors: np.ndarray, task: str) -> None:
        """Add programs of one task: ``features`` (n, width), ``errors`` (n,); what is not finite is left out."""
        kept = np.isfinite(errors)
        names = np.full(int(kept.sum()), task, object)
        if not len(names):
            return
        self.features = np.concatenate([self.features.reshape(-1, features.shape[1]), features[kept]])
        self.errors, self.tasks = np.concatenate([self.errors, errors[kept]]), np.concatenate([self.tasks, names])

    def expected(self, features: np.ndarray, task: str) -> np.ndarray:
        """Expect (m,) log of measured over predicted latency of programs (m, width)."""
        if not len(self):
            return np.zeros(len(features))
        solved = self._solved(task)
        return solved.towards(features, task, self.weights) @ solved.weighted

    def residuals(self, features: np.ndarray, task: str) -> tuple[np.ndarray, np.ndarray]:
        """Expect the same as ``expected``, with its standard deviation."""
        weights = self.weights
        before = np.full(len(features), weights.device**2 + weights.task**2 + weights.shared**2 + weights.own**2)
        if not len(self):
            return np.zeros(len(features)), np.sqrt(before)
        solved = self._solved(task)
        towards = solved.towards(features, task, weights)
        explained = np.einsum("ij,ji->i", towards, cho_solve((solved.factor, True), towards.T))
        return towards @ solved.weighted, np.sqrt(np.maximum(before - explained, 0.0))

    def _solved(self, task: str) -> _Solved:
        """What was learned, for programs of a task: solved once between two batches."""
        last, key = self._last, (task, self.weights)
        if last is None or last[0] is not self.errors or last[1] != key:  # what is learned makes new arrays
            kept = self._kept(task)
            solved = _Solved.of(self.features[kept], self.errors[kept], self.tasks[kept], self.weights)
            last = self._last = self.errors, key, solved
        return last[2]

    def _kept(self, task: str) -> np.ndarray:
        order = np.lexsort((np.arange(len(self)), self.tasks == task))
        return np.sort(order[-_MOST:])


@dataclass(frozen=True)
class _Solved:
    """These are n programs, and what follows from them for others."""

    known: np.ndarray
    """(n, width) features, scaled."""
    tasks: np.ndarray
    centre: np.ndarray
    scale: np.ndarray
    used: np.ndarray
    """(width of features) bool: those that differ between programs."""
    factor: np.ndarray
    """(n, n) the Cholesky factor of the covariance of their errors."""
    weighted: np.ndarray
    """(n,) the inverse covariance times the errors."""

    @staticmethod
    def of(features: np.ndarray, errors: np.ndarray, tasks: np.ndarray, weights: Weights) -> _Solved:
        """Solve for what is expected of others."""
        centre, scale = features.mean(0), features.std(0)
        used = scale > 1e-6
        known = (features[:, used] - centre[used]) / scale[used]
        _, numbers = np.unique(tasks.astype(str), return_inverse=True)
        among = _covariance(known, known, np.equal.outer(numbers, numbers), weights)
        among[np.diag_indices_from(among)] += weights.noise**2
        factor = cholesky(among, lower=True)
        return _Solved(known, tasks, centre, scale, used, factor, cho_solve((factor, True), errors))

    def towards(self, features: np.ndarray, task: str, weights: Weights) -> np.ndarray:
        """(m, n) covariance of programs (m, width) of one task with these."""
        new = (features[:, self.used] - self.centre[self.used]) / self.scale[self.used]
        same = np.broadcast_to(self.tasks == task, (len(new), len(self.tasks)))
        return _covariance(new, self.known, same, weights)


def _covariance(left: np.ndarray, right: np.ndarray, same: np.ndarray, weights: Weights) -> np.ndarray:
    distance = (left**2).sum(1)[:, None] + (right**2).sum(1) - 2.0 * left @ right.T
    near = np.exp(-np.maximum(distance, 0.0) / (2.0 * max(1, left.shape[1])))
    offset = weights.device**2 + np.where(same, weights.task**2, 0.0)
    return offset + near * (weights.shared**2 + np.where(same, weights.own**2, 0.0))
