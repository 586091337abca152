"""Intervals of a fine-tuned model: from what models that did without a part of the new labels say of that part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cdmpp.data.batching import ProgramTensors
from cdmpp.data.splits import Split
from cdmpp.devices import sheets_of
from cdmpp.predict.calibration import calibrate
from cdmpp.predict.conformal import SIGNED_TASKS
from cdmpp.predict.predictor import Predictor, device_group
from cdmpp.predict.rows import predict_rows
from cdmpp.training.adapt import TuneConfig, fine_tune

if TYPE_CHECKING:
    from cdmpp.data.dataset import LatencyDataset

_LEARNED_FROM = 4000
"""Programs that describe what the model has seen."""


def cross_calibrate(
    tuned: Predictor,
    start: Predictor,
    dataset: LatencyDataset,
    split: Split,
    tasks: Sequence[str],
    config: TuneConfig,
    out: Path | str,
    seed: int,
    folds: int = 5,
    accelerator: str = "auto",
) -> str:
    """Give ``tuned`` intervals for the new device and the sources; returns what the card says of them.

    The ``tasks`` that it learned from are dealt into ``folds``; a model tuned on the others predicts each, as in the
    cross-conformal method (Vovk, Annals of Mathematics and AI 2015). Those models saw fewer tasks, so the intervals
    are a little wide. With fewer tasks than a device needs for intervals of its own there are none.

    Args:
        tuned, start, dataset, split, tasks, config, seed: as ``fine_tune`` got and returned them.
        out: gets a folder a fold; a rerun continues.
    """
    if folds < 2 or len(tasks) < SIGNED_TASKS:
        tuned.calibration = None
        return f"none: intervals of a new device take {SIGNED_TASKS} labelled tasks and tuning.folds of 2 or more"
    order = np.random.default_rng(seed).permutation(sorted(set(tasks)))
    names = np.asarray(dataset.task_ids)
    held_out, predicted = [], []
    for fold in range(folds):
        left = order[fold::folds]
        kept = [task for task in order.tolist() if task not in set(left.tolist())]
        rest = fine_tune(
            start, dataset, split, kept, config, Path(out) / f"fold-{fold}", seed, accelerator=accelerator
        ).predictor
        rows = split.pool[np.isin(names[split.pool], left)]
        held_out.append(rows)
        predicted.append(np.log(predict_rows(rest, dataset, rows)))
    new = np.concatenate(held_out)
    rows = np.concatenate([new, split.validation])
    sheets, devices = sheets_of(dataset.devices), np.asarray(dataset.devices)

    def tensors(chosen: np.ndarray) -> ProgramTensors:
        return ProgramTensors.build(dataset.asts.take(chosen), sheets, devices[chosen]).to(str(tuned.torch_device))

    seen = tuned.examine(tensors(rows), np.arange(len(rows)))
    logs = seen.logs.copy()
    logs[:, : len(new)] += np.concatenate(predicted) - logs[:, : len(new)].mean(0)
    learned = np.concatenate([np.setdiff1d(split.train, rows), new])
    if len(learned) > _LEARNED_FROM:
        learned = np.sort(np.random.default_rng(0).choice(learned, _LEARNED_FROM, replace=False))
    tuned.calibration = calibrate(
        tuned.examine(tensors(learned), np.arange(len(learned))),
        replace(seen, logs=logs),
        np.log(dataset.latency_s[rows]),
        names[rows],
        [device_group(sheets[name]) for name in devices[rows].tolist()],
    )
    return f"cross-conformal over {folds} folds of the {len(tasks)} tasks, sources by their validation part"
