"""A data set with what only baselines read, what fits it, and what a model answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split
from cdmpp.evaluation.noise import NoiseFloor


@dataclass(frozen=True)
class EvaluationData:
    """A data set comes with the extra features that only baselines read."""

    dataset: LatencyDataset
    per_store: np.ndarray | None = None
    """(n, 4 * 164 + 1) float32, ``pooling.pool_per_store`` of TVM's PerStoreFeature; None where not derived."""
    noise: Mapping[str, NoiseFloor] = field(default_factory=dict)
    """Device -> noise floor of its labels, where programs were measured again."""


class Baseline(Protocol):
    """An evaluation fits this predictor itself."""

    def fit(self, data: EvaluationData, split: Split, seed: int) -> None:
        """Learn from ``split.train``; ``split.validation`` may choose settings. The rest is never read."""

    def predict(self, data: EvaluationData, indices: np.ndarray) -> np.ndarray:
        """Return (len(indices),) seconds."""


@dataclass(frozen=True)
class Forecast:
    """A forecast is the predictions of a model for m test programs."""

    latency_s: np.ndarray
    intervals: Mapping[float, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """(m,) lower and (m,) upper bounds in seconds by level; empty for models without."""
