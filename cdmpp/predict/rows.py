"""Predictions for rows of a data set that may hold several devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from cdmpp.data.dataset import LatencyDataset
    from cdmpp.predict.predictor import Predictor


def predict_rows(predictor: Predictor, dataset: LatencyDataset, rows: np.ndarray) -> np.ndarray:
    """(len(rows),) seconds of the programs ``rows`` of ``dataset``, each on its own device."""
    names = np.asarray(dataset.devices)[rows]
    predicted = np.empty(len(rows))
    for name in np.unique(names):
        chosen = names == name
        programs = dataset.asts.take(np.asarray(rows)[chosen])
        predicted[chosen] = predictor.predict(programs, device=str(name)).latency_s
    return predicted
