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
    """It grows by ``learn``; ``residuals`` then says what to add to the model's log-latency of other programs."""

    weights: Weights = field(default_factory=Weights)
    features: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    """(n, width)"""
    errors: np.ndarray = field(default_factory=lambda: np.empty(0))
    """(n,) log of measured over predicted latency."""
    tasks: np.ndarray = field(default_factory=lambda: np.empty(0, object))

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

    def residuals(self, features: np.ndarray, task: str) -> tuple[np.ndarray, np.ndarray]:
        """Expect (m,) log of measured over predicted latency of programs (m, width), with its standard deviation."""
        weights = self.weights
        before = np.full(len(features), weights.device**2 + weights.task**2 + weights.shared**2 + weights.own**2)
        if not len(self):
            return np.zeros(len(features)), np.sqrt(before)
        kept = self._kept(task)
        known, names = self.features[kept], self.tasks[kept]
        centre, scale = known.mean(0), known.std(0)
        used = scale > 1e-6
        known, new = ((x[:, used] - centre[used]) / scale[used] for x in (known, features))
        among = self._covariance(known, names, known, names)
        among[np.diag_indices_from(among)] += weights.noise**2
        towards = self._covariance(new, np.full(len(new), task, object), known, names)
        factor = cholesky(among, lower=True)
        mean = towards @ cho_solve((factor, True), self.errors[kept])
        explained = np.einsum("ij,ji->i", towards, cho_solve((factor, True), towards.T))
        return mean, np.sqrt(np.maximum(before - explained, 0.0))

    def _kept(self, task: str) -> np.ndarray:
        order = np.lexsort((np.arange(len(self)), self.tasks == task))
        return np.sort(order[-_MOST:])

    def _covariance(
        self, left: np.ndarray, left_tasks: np.ndarray, right: np.ndarray, right_tasks: np.ndarray
    ) -> np.ndarray:
        weights, same = self.weights, np.equal.outer(left_tasks, right_tasks)
        distance = (left**2).sum(1)[:, None] + (right**2).sum(1) - 2.0 * left @ right.T
        near = np.exp(-np.maximum(distance, 0.0) / (2.0 * max(1, left.shape[1])))
        offset = weights.device**2 + np.where(same, weights.task**2, 0.0)
        return offset + near * (weights.shared**2 + np.where(same, weights.own**2, 0.0))
