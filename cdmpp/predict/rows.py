"""Predictions for rows of a data set that may hold several devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from cdmpp.data.dataset import LatencyDataset
    from cdmpp.predict.predictor import Predictor
    from cdmpp.uncertainty.calibration import Examined

_PORTION = 32_768
"""Programs whose vectors are copied at a time."""


def predict_rows(
    predictor: Predictor, dataset: LatencyDataset, rows: np.ndarray, compiled: bool | None = None
) -> np.ndarray:
    """Predict seconds of the programs ``rows`` of ``dataset``, (len(rows),), each on its own device.

    ``compiled``: False: without their machine code, as at ``Predictor.predict``.
    """
    return predict_rows_with_intervals(predictor, dataset, rows, compiled)[0]


def predict_rows_with_intervals(
    predictor: Predictor, dataset: LatencyDataset, rows: np.ndarray, compiled: bool | None = None
) -> tuple[np.ndarray, dict[float, tuple[np.ndarray, np.ndarray]]]:
    """Predict the same with lower and upper bounds by level, for levels that every device in ``rows`` has."""
    rows = np.asarray(rows)
    names = np.asarray(dataset.devices)[rows]
    predicted = np.empty(len(rows))
    bounds: dict[float, np.ndarray] = {}
    for name in np.unique(names):
        of_device = np.flatnonzero(names == name)
        for chosen in np.array_split(of_device, -(-len(of_device) // _PORTION)):
            prediction = predictor.predict(dataset.asts.take(rows[chosen]), device=str(name), compiled=compiled)
            predicted[chosen] = prediction.latency_s
            for level, interval in prediction.intervals.items():
                bounds.setdefault(level, np.full((2, len(predicted)), np.nan))[:, chosen] = interval
    # Where a device has no intervals, there are none: they would be judged on a part only.
    return predicted, {level: (low, high) for level, (low, high) in bounds.items() if np.isfinite(low).all()}


def examine_rows(predictor: Predictor, dataset: LatencyDataset, rows: np.ndarray) -> Examined:
    """Return the view that ``predictor`` has of the programs ``rows`` of ``dataset``, each on its own device."""
    from cdmpp.data.batching import ProgramTensors
    from cdmpp.devices import sheets_of

    names = dataset.devices[rows]
    sheets = {name: predictor.trained_on.get(name, sheet) for name, sheet in sheets_of(names).items()}
    programs = ProgramTensors.build(dataset.asts, sheets, names, rows=rows)
    return predictor.examine(programs.to(str(predictor.torch_device)), np.arange(len(rows)))
