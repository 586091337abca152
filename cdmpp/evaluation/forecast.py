"""Predictions of the model of a cell for the test programs: baselines are fitted, models trained, stored ones read."""

from __future__ import annotations

import numpy as np

from cdmpp.data.splits import Split
from cdmpp.evaluation.baselines import BASELINES, make_baseline
from cdmpp.evaluation.cell import Cell, CellOptions
from cdmpp.evaluation.evaluation_data import Baseline, EvaluationData, Forecast
from cdmpp.evaluation.trees import Trees, TreeSettings
from cdmpp.predict.model_folder import load
from cdmpp.predict.rows import predict_rows_with_intervals
from cdmpp.uncertainty.conformal import fit_conformal


def forecast(data: EvaluationData, dataset_name: str, split: Split, cell: Cell, options: CellOptions) -> Forecast:
    """Predict the test programs of ``split``; with intervals for trees and trained models."""
    if cell.model in BASELINES:
        baseline = make_baseline(cell.model, TreeSettings(threads=options.threads))
        baseline.fit(data, split, cell.seed)
        if isinstance(baseline, Trees):
            return conformal_forecast(baseline, data, split)
        return Forecast(baseline.predict(data, split.test))
    if cell.model in options.stored:
        stored = load(options.stored[cell.model])
        return Forecast(*predict_rows_with_intervals(stored, data.dataset, split.test))
    from cdmpp.evaluation.learned import train_config
    from cdmpp.recipes.cross_calibration import calibrate_by_folds
    from cdmpp.recipes.train import train
    from cdmpp.training.config import Run

    config = train_config(cell.model, options.overrides, options.variants)
    run = Run(cell.model_folder(options.out, dataset_name), cell.seed, progress=False, accelerator=options.accelerator)
    trained = train(data.dataset, split, config, run)
    calibrate_by_folds(trained, data.dataset, split, config, run)
    return Forecast(*predict_rows_with_intervals(trained.predictor, data.dataset, split.test))


def conformal_forecast(baseline: Baseline, data: EvaluationData, split: Split) -> Forecast:
    """Forecast by a fitted baseline: all intervals have one width, calibrated on ``split.validation``."""
    rows, predicted = split.validation, baseline.predict(data, split.test)
    latency_s, tasks = data.dataset.latency_s[rows], np.asarray(data.dataset.task_ids)[rows]
    conformal = fit_conformal(np.log(baseline.predict(data, rows)), np.log(latency_s), tasks)
    return Forecast(predicted, conformal.intervals(np.log(predicted)))
