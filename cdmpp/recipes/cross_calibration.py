"""Intervals where few tasks vouch for them: cross-conformal (Vovk, Annals of Mathematics and AI 2015).

Every task is predicted by a model that has not learned from it, so that all calibrate; the intervals are a little wide.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split
from cdmpp.data.subsample import sample_rows
from cdmpp.errors import DataError
from cdmpp.predict.rows import examine_rows
from cdmpp.recipes.adapted import Adapted, deal
from cdmpp.recipes.train import Trained, coded_rows, groups_of, train
from cdmpp.training.config import Run, TrainConfig
from cdmpp.uncertainty.calibration import Calibration, calibrate, scale_inputs
from cdmpp.uncertainty.conformal import FITTED_TASKS, fit_conformal


def cross_calibrate(adapted: Adapted, dataset: LatencyDataset, split: Split) -> str:
    """Give a model that was adapted to a device intervals for it and the sources; returns what the card says of them.

    The tasks of the device count as its folds predicted them, the sources by the validation part of ``split``. Few
    tasks give none.
    """
    tuned, new, names = adapted.predictor, adapted.rows, dataset.task_ids
    n_tasks = len(np.unique(names[new]))
    if n_tasks < FITTED_TASKS:
        tuned.calibration = None
        return f"none: intervals of a new device take {FITTED_TASKS} labelled tasks and tuning.folds of 2 or more"
    rows = np.concatenate([new, split.validation])
    learned = np.concatenate([np.setdiff1d(split.train, rows), new])
    measured = np.log(dataset.latency_s[rows]), names[rows], groups_of(dataset, rows)
    sketched = sample_rows(learned, 4000)

    def fitted(data: LatencyDataset, by_folds: np.ndarray, kept: np.ndarray) -> Calibration:
        seen = examine_rows(tuned, data, rows)
        logs = seen.logs.copy()
        logs[:, : len(new)] += by_folds - logs[:, : len(new)].mean(0)
        parts = examine_rows(tuned, data, sketched), replace(seen, logs=logs).take(kept)
        return calibrate(*parts, *(one[kept] for one in measured))

    tuned.calibration = fitted(dataset, adapted.log_prediction, coded_rows(tuned, dataset, rows))
    if tuned.reads_code:
        blind = replace(dataset, asts=dataset.asts.with_codes(None))
        without_code = fitted(blind, adapted.without_code, np.arange(len(rows)))
        tuned.calibration = replace(tuned.calibration, without_code=without_code)
    return f"cross-conformal over folds of the {n_tasks} tasks, sources by their validation part"


def calibrate_by_folds(result: Trained, dataset: LatencyDataset, split: Split, config: TrainConfig, run: Run) -> None:
    """Give a trained model intervals from all tasks of training and validation, and save it again.

    The tasks of both parts are dealt into ``config.trainer.interval_folds`` (0: nothing is done); a model of the same
    configuration, trained without a fold and with the next one as its validation part, predicts it.
    """
    folds, trained = config.trainer.interval_folds, result.predictor
    if not folds:
        return
    names, both = dataset.task_ids, np.concatenate([split.train, split.validation])
    tasks = np.random.default_rng(run.seed).permutation(np.unique(names[both]))
    if folds > len(tasks):
        raise DataError(f"trainer.interval_folds={folds}, and training and validation have {len(tasks)} tasks")
    parts = deal(names, both, tasks, folds)
    plain = replace(config, loss=replace(config.loss, domain="none"))
    logs, inputs = [], []
    for fold, part in enumerate(parts):
        validation = parts[(fold + 1) % folds]
        learned = np.setdiff1d(both, np.concatenate([part, validation]))
        without = replace(split, train=learned, validation=validation, pool=np.zeros(0, np.int64))
        other = train(dataset, without, plain, _fold_run(replace(run, out=run.out / "folds"), fold)).predictor
        seen = examine_rows(other, dataset, part)
        logs.append(seen.log_prediction)
        assert other.calibration
        inputs.append(scale_inputs(seen, other.calibration.novelty))
    rows = np.concatenate(parts)
    log_latency, groups = np.log(dataset.latency_s[rows]), groups_of(dataset, rows)
    conformal = fit_conformal(np.concatenate(logs), log_latency, names[rows], np.concatenate(inputs), groups)
    # How far a program lies from those learned from is told by programs that were not: the validation part.
    assert trained.calibration
    trained.calibration = replace(trained.calibration, conformal=conformal)
    origin = f"{folds} folds of the {len(tasks)} tasks of training and validation (cross-conformal)"
    trained.card["intervals"] = {**trained.calibration.describe(), "calibrated_on": origin}
    trained.save(result.model_dir)


def _fold_run(run: Run, fold: int) -> Run:
    return replace(run, out=run.out / f"fold-{fold}", progress=False)
