"""EvaluationData: a data set with what only baselines read, and what a baseline is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split
from cdmpp.evaluation.noise import NoiseFloor


@dataclass(frozen=True)
class EvaluationData:
    """A data set with the extra features that only baselines read."""

    dataset: LatencyDataset
    per_store: np.ndarray | None = None
    """(n, 4 * 164 + 1) float32, ``pooling.pool_per_store`` of TVM's PerStoreFeature; None where not derived."""
    noise: NoiseFloor | None = None
    """Of the labels; None where the records were not at hand."""


class Baseline(Protocol):
    def fit(self, data: EvaluationData, split: Split, seed: int) -> None:
        """Learn from ``split.train``; ``split.validation`` may choose settings. The rest is never read."""

    def predict(self, data: EvaluationData, indices: np.ndarray) -> np.ndarray:
        """(len(indices),) seconds."""
