"""Baselines for framework operators: the roofline of the datasheet, the fitted one, and what trees read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from cdmpp import devices
from cdmpp.ast.layout import EAGER_FEATURES
from cdmpp.data.batching import Batch, ProgramTensors, ordered_batches
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split
from cdmpp.errors import DataError
from cdmpp.evaluation.evaluation_data import EvaluationData
from cdmpp.model.eager_inputs import N_INPUTS, EagerQuantities, eager_inputs
from cdmpp.model.eager_prior import EagerPrior

_MAX_DEVICES = 64


class EagerRoofline:
    """The time is max(operations / peak, bytes / bandwidth) by the datasheet only; nothing is fitted."""

    def fit(self, data: EvaluationData, split: Split, seed: int) -> None:
        """Learn nothing; ``DataError`` for programs that are no framework operators."""
        _only_operators(data.dataset)

    @torch.no_grad()
    def predict(self, data: EvaluationData, indices: np.ndarray) -> np.ndarray:
        """Return (len(indices),) seconds."""
        return np.exp(_each(data.dataset, indices, lambda batch: self._log_latency(batch)[:, None])[:, 0])

    def _log_latency(self, batch: Batch) -> torch.Tensor:
        quantities = EagerQuantities(batch)
        return torch.maximum(quantities.compute_s(), quantities.memory_s()).clamp_min(1e-9).log()


class EagerCosts(EagerRoofline):
    """Our model starts from this: the roofline with numbers fitted for each family and device, and a floor."""

    def fit(self, data: EvaluationData, split: Split, seed: int) -> None:
        """Fit the numbers on ``split.train``."""
        _only_operators(data.dataset)
        programs = _tensors(data.dataset, split.train)
        self.prior = EagerPrior(_MAX_DEVICES, programs.device_vectors.shape[1])
        self.prior.fit(programs, np.arange(len(split.train)))

    def _log_latency(self, batch: Batch) -> torch.Tensor:
        return self.prior(batch)


@torch.no_grad()
def eager_columns(data: EvaluationData) -> np.ndarray:
    """Return what our model's correction reads, the same for trees: (n, N_INPUTS) float32."""
    _only_operators(data.dataset)
    return _each(
        data.dataset, np.arange(len(data.dataset)), lambda batch: eager_inputs(EagerQuantities(batch)), N_INPUTS
    )


def _each(
    dataset: LatencyDataset, rows: np.ndarray, function: Callable[[Batch], torch.Tensor], width: int = 1
) -> np.ndarray:
    programs, columns = _tensors(dataset, rows), np.empty((len(rows), width), np.float32)
    for batch in ordered_batches(programs, np.arange(len(rows))):
        columns[batch.rows.numpy()] = function(batch).numpy()
    return columns


def _tensors(dataset: LatencyDataset, rows: np.ndarray) -> ProgramTensors:
    names = np.asarray(dataset.devices)[rows]
    return ProgramTensors.build(dataset.asts.take(rows), devices.sheets_of(names), names, dataset.latency_s[rows])


def _only_operators(dataset: LatencyDataset) -> None:
    if dataset.features != EAGER_FEATURES:
        raise DataError(f"this baseline is one of framework operators, and the data has features={dataset.features}")
