"""Adapted: a model for a new device by few labels. Held-out tasks of it tell whether it is better tuned than scaled."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cdmpp import devices
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split
from cdmpp.predict.predictor import Predictor
from cdmpp.predict.rows import predict_rows
from cdmpp.recipes.fine_tune import fine_tune
from cdmpp.recipes.scaled import scale_to
from cdmpp.training.config import LossConfig, Run, TuneConfig


@dataclass(frozen=True)
class Adapted:
    """This model was chosen, and it was chosen by these figures."""

    predictor: Predictor
    way: str
    """zero_shot: the start as it is; scaled: see ``scale_to``; tuned: see ``fine_tune``."""
    errors: Mapping[str, float]
    """MAPE of every way on tasks held out in turn, percent, tasks weighing the same; empty where none was compared."""
    rows: np.ndarray
    """(n,) programs of those tasks; empty where none was compared."""
    log_prediction: np.ndarray
    """(n,) natural-log seconds of them in the chosen way, each by a model without its task."""
    without_code: np.ndarray
    """The same of answers without machine code."""


def adapt(
    start: Predictor,
    dataset: LatencyDataset,
    split: Split,
    tasks: Sequence[str],
    config: TuneConfig,
    run: Run,
    loss: LossConfig | None = None,
) -> Adapted:
    """Choose of ``start`` as it is, scaled and tuned what errs least on the ``tasks``, dealt into ``config.folds``.

    ``split`` as for ``fine_tune``, which also says what is raised. A single task can compare nothing: it scales where
    it can. With ``config.folds`` of 0 nothing is compared, and the result is tuned.
    """
    names = dataset.task_ids
    order = np.random.default_rng(run.seed).permutation(sorted(set(tasks)))
    rows = split.pool[np.isin(names[split.pool], order)]
    if not config.folds:
        return Adapted(_made("tuned", start, dataset, split, order, config, run, loss), "tuned", {}, *_nothing())
    ways = ["zero_shot", *(["scaled"] if _can_scale(start, dataset, rows) else []), "tuned"]
    folds = min(config.folds, len(order))
    if folds < 2:
        return Adapted(_made(ways[-2], start, dataset, split, order, config, run, loss), ways[-2], {}, *_nothing())
    parts = deal(names, split.pool, order, folds)
    held_out, predicted, blind = np.concatenate(parts), {}, {}
    for way in ways:
        logs: list[np.ndarray] = []
        without: list[np.ndarray] = []
        for fold, part in enumerate(parts):
            kept = np.setdiff1d(order, names[part])
            own = replace(run, out=run.out / f"fold-{fold}", progress=False)
            made = _made(way, start, dataset, split, kept, config, own, loss)
            logs.append(np.log(predict_rows(made, dataset, part)))
            without.append(np.log(predict_rows(made, dataset, part, compiled=False)))
        predicted[way], blind[way] = np.concatenate(logs), np.concatenate(without)
    errors = {way: _error(dataset, held_out, logs) for way, logs in predicted.items()}
    way = min(errors, key=lambda name: errors[name])
    chosen = _made(way, start, dataset, split, order, config, replace(run, out=run.out / "all"), loss)
    return Adapted(chosen, way, errors, held_out, predicted[way], blind[way])


def deal(names: np.ndarray, rows: np.ndarray, tasks: np.ndarray, folds: int) -> list[np.ndarray]:
    """Return the rows that have the tasks of each fold; ``names``: the task of every program."""
    return [rows[np.isin(names[rows], tasks[fold::folds])] for fold in range(folds)]


def _made(
    way: str,
    start: Predictor,
    dataset: LatencyDataset,
    split: Split,
    tasks: np.ndarray,
    config: TuneConfig,
    run: Run,
    loss: LossConfig | None,
) -> Predictor:
    if way == "tuned":
        return fine_tune(start, dataset, split, tasks.tolist(), config, run, loss).predictor
    rows = split.pool[np.isin(dataset.task_ids[split.pool], tasks)]
    device = devices.get(str(dataset.devices[rows[0]]))
    made = scale_to(start, device, dataset, rows)[0] if way == "scaled" else copy.deepcopy(start)
    made.trained_on[device.name] = device
    made.calibration = None  # of the sources: it would promise for the new device what nobody has seen there
    return made


def _can_scale(start: Predictor, dataset: LatencyDataset, rows: np.ndarray) -> bool:
    codes = dataset.asts.codes
    return start.can_scale and codes is not None and bool(np.isfinite(codes[rows]).all(1).any())


def _error(dataset: LatencyDataset, rows: np.ndarray, log_prediction: np.ndarray) -> float:
    ape = 100 * np.abs(np.exp(log_prediction) / dataset.latency_s[rows] - 1)
    _, which, sizes = np.unique(dataset.task_ids[rows], return_inverse=True, return_counts=True)
    return float(np.average(ape, weights=1 / sizes[which]))


def _nothing() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
