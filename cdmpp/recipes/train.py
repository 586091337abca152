"""train(...): a data set, a split and a configuration in; a calibrated model folder out."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from cdmpp.ast.layout import EAGER_FEATURES
from cdmpp.ast.quantities import unscheduled
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split
from cdmpp.data.subsample import sample_rows
from cdmpp.devices import sheets_of
from cdmpp.errors import CdmppError
from cdmpp.model.build import Model
from cdmpp.platform.files import plain
from cdmpp.predict.flags import OF_STEPS, UNSCHEDULED
from cdmpp.predict.predictor import Predictor, program_groups
from cdmpp.programs.task import trains
from cdmpp.training.config import Run, TrainConfig
from cdmpp.training.fit import fit
from cdmpp.training.inputs import FitInputs, Replay
from cdmpp.training.metrics import breakdown, latency_metrics, mape_factor
from cdmpp.training.processes import is_rank_zero, one_writer
from cdmpp.training.ranking import fit_ranker
from cdmpp.training.run_folder import claim_folder, write_history
from cdmpp.uncertainty.calibration import calibrate
from cdmpp.version import __version__

_SKETCHED = 20_000
"""Training programs that the out-of-range score is fitted on: more would not change it, only take time."""


@dataclass(frozen=True)
class Trained:
    """This is a trained model and how it came to be."""

    model_dir: Path
    val_metrics: dict[str, float]
    history: list[dict[str, float]]
    """One row a validation: member, epoch, train_loss, val_mape, val_median_ape, seconds."""
    predictor: Predictor


def train(
    dataset: LatencyDataset,
    split: Split,
    config: TrainConfig,
    run: Run,
    start: Predictor | None = None,
    replay: Replay | None = None,
) -> Trained:
    """Train on ``split.train``, choose the best epoch on ``split.validation``; ``split.test`` is never looked at.

    A run that was interrupted continues from its last checkpoint when started again with the same ``run.out``.
    Where several processes train together, only the one with rank zero returns from here.

    ``run.out`` gets ``model/`` (the result), ``member-*/`` (checkpoints, logs) and ``history.csv``. A copy of ``start``
    is trained where it is given, see ``fit``.

    Raises:
        DataError: an empty part, or unlabelled or replayed programs that are part of the test.
        CdmppError: a model of framework operators and other data, or the other way round.
        CdmppError: ``run.out`` belongs to a run of other data or another configuration, or to one that still goes on.
    """
    if (config.model.name == EAGER_FEATURES) != (dataset.features == EAGER_FEATURES):
        raise CdmppError(
            f"model={config.model.name} on data with features={dataset.features}: framework operators are learned with "
            "model=library features=library, scheduled programs with neither"
        )
    inputs = FitInputs.build(dataset, split, config.loss, run.accelerator, replay)
    models = tuple(start.models) if start else ()
    with one_writer(run.out):
        if is_rank_zero():
            claim_folder(run, config, dataset, split, models, replay)
        members, history = fit(inputs, config, run, models)
        if not is_rank_zero():
            raise SystemExit(0)  # its part is done; the process with rank zero has the model
        predictor = _predictor(members, inputs, dataset, split, start)
        if start:
            predictor.ranker = start.ranker
        elif predictor.reads_code:
            predictor.ranker = fit_ranker(dataset, split.train, run.seed)
        val_metrics = _calibrate(predictor, inputs, dataset, split, config, run.seed)
        predictor.save(run.out / "model")
        write_history(run.out / "history.csv", history)
        return Trained(run.out / "model", val_metrics, history, predictor)


def _predictor(
    members: list[Model], inputs: FitInputs, dataset: LatencyDataset, split: Split, start: Predictor | None
) -> Predictor:
    """Knows the devices that were learned from, with their current datasheets; scaled for the least error."""
    names = dataset.devices[inputs.dataset_rows]
    before = start.trained_on if start else {}
    learned = inputs.train if inputs.replay is None else np.concatenate([inputs.train, inputs.replay.rows])
    seen = {*names[learned].tolist(), *before}
    trained_on = {**before, **{name: sheet for name, sheet in sheets_of(names).items() if name in seen}}
    predictor = Predictor(members, trained_on, features=dataset.features)
    if start:
        predictor.unseen, predictor.calibrated = start.unseen, start.calibrated - seen
        predictor.log_shift = start.log_shift  # validation may be of other devices than those that are learned now
    else:
        unshifted = np.exp(predictor.examine(inputs.programs, inputs.validation).log_prediction)
        predictor.log_shift = float(np.log(mape_factor(dataset.latency_s[split.validation], unshifted)))
    return predictor


def _calibrate(
    predictor: Predictor, inputs: FitInputs, dataset: LatencyDataset, split: Split, config: TrainConfig, seed: int
) -> dict[str, float]:
    """Give ``predictor`` intervals and its card; returns its validation figures."""
    rows = split.validation
    truth, tasks, names = dataset.latency_s[rows], dataset.task_ids[rows], dataset.devices[rows]
    validation = predictor.examine(inputs.programs, inputs.validation)
    sketched = sample_rows(inputs.train, _SKETCHED)
    training = predictor.examine(inputs.programs, sketched)
    measured = np.log(truth), tasks, groups_of(dataset, rows)
    coded = coded_rows(predictor, dataset, rows)
    predictor.calibration = calibrate(training, validation.take(coded), *(one[coded] for one in measured))
    if predictor.reads_code:
        blind = inputs.programs.without_codes()
        training, validation_blind = (predictor.examine(blind, part) for part in (sketched, inputs.validation))
        without_code = calibrate(training, validation_blind, *measured)
        predictor.calibration = replace(predictor.calibration, without_code=without_code)
    predicted = np.exp(validation.log_prediction)
    val_metrics = latency_metrics(truth, predicted, tasks, names)
    predictor.card |= plain(
        {
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "cdmpp": __version__,
            "torch": torch.__version__,
            "data": dataset.source,
            "split": {"name": split.name, "seed": split.seed, **split.counts},
            "programs": {"train": len(split.train), "validation": len(split.validation), "test": len(split.test)},
            UNSCHEDULED: _unscheduled(dataset, split.train),
            OF_STEPS: _of_steps(dataset, split.train),
            "seed": seed,
            "training": config.to_dict(),
            "validation": val_metrics,
            "validation_by_device": breakdown(truth, predicted, tasks, names, names),
            "validation_by_op_class": breakdown(truth, predicted, tasks, names, dataset.op_classes[rows]),
            "intervals": predictor.calibration.describe(),
        }
    )
    return val_metrics


def coded_rows(predictor: Predictor, dataset: LatencyDataset, rows: np.ndarray) -> np.ndarray:
    """Return those places of ``rows`` that machine code answers; all where none is, or the model reads none."""
    codes = dataset.asts.codes
    if not predictor.reads_code or codes is None:
        return np.arange(len(rows))
    coded = np.flatnonzero(~np.isnan(codes[rows, 0]))
    return coded if len(coded) else np.arange(len(rows))


def groups_of(dataset: LatencyDataset, rows: np.ndarray) -> np.ndarray:
    """Return the ``program_groups`` of ``rows`` (n,) of ``dataset``."""
    names, codes = dataset.devices[rows], dataset.asts.codes
    sheets = sheets_of(names)
    operators = codes[rows] if dataset.features == EAGER_FEATURES and codes is not None else None
    return program_groups([sheets[name] for name in names.tolist()], operators)


def _unscheduled(dataset: LatencyDataset, rows: np.ndarray) -> dict[str, int]:
    """Device -> how many of ``rows`` have no schedule."""
    if dataset.features != "cdmpp":
        return {}
    plain = dataset.devices[rows][unscheduled(dataset.asts.take(rows))]
    return {str(name): int(n) for name, n in zip(*np.unique(plain, return_counts=True), strict=True)}


def _of_steps(dataset: LatencyDataset, rows: np.ndarray) -> dict[str, int]:
    """Device -> how many of ``rows`` are of tasks that only training steps have."""
    own = {key: all(trains(name) for name in task.networks) for key, task in dataset.tasks.items() if task.networks}
    chosen = dataset.devices[rows][[own.get(str(key), False) for key in dataset.task_ids[rows]]]
    return {str(name): int(n) for name, n in zip(*np.unique(chosen, return_counts=True), strict=True)}
