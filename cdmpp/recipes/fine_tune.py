"""Fine-tuning: teach a model a device from the labels of a few tasks, without it forgetting the devices it knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split
from cdmpp.errors import DataError
from cdmpp.predict.predictor import Predictor
from cdmpp.predict.rows import predict_rows
from cdmpp.recipes.train import Trained, train
from cdmpp.training.config import LossConfig, Run, TrainConfig, TuneConfig
from cdmpp.training.inputs import Replay
from cdmpp.training.metrics import breakdown
from cdmpp.training.processes import one_writer


def fine_tune(
    start: Predictor,
    dataset: LatencyDataset,
    split: Split,
    tasks: Sequence[str],
    config: TuneConfig,
    run: Run,
    loss: LossConfig | None = None,
) -> Trained:
    """Train a copy of ``start`` on the target's programs of ``tasks``, mixed with programs of the sources.

    ``split`` is by device: ``pool`` holds the target, ``train`` (replayed) and ``validation`` the sources; ``test``
    is never looked at.

    Raises:
        DataError: a task without a labelled program in the pool, or one that test or validation hold.
    """
    names, wanted = dataset.task_ids, sorted(set(tasks))
    for part, rows in (("test", split.test), ("validation", split.validation)):
        if both := sorted(set(wanted) & set(names[rows].tolist())):
            raise DataError(f"{len(both)} tasks to fine-tune on are in the {part} part, the first is {both[0]}")
    if lacking := sorted(set(wanted) - set(names[split.pool].tolist())):
        raise DataError(f"{len(lacking)} of {len(wanted)} tasks have no labelled program, the first is {lacking[0]}")
    rows = split.pool[np.isin(names[split.pool], wanted)]
    tuned = replace(split, train=rows, pool=np.setdiff1d(split.pool, rows))
    replay = Replay(split.train, config.replay, config.replay_weight) if config.replay and len(split.train) else None
    replayed = min(len(split.train), round(config.replay * len(rows)))
    labelled_loss = replace(loss or LossConfig(), domain="none")
    training = TrainConfig(start.models[0].config, labelled_loss, config.trainer(len(rows) + replayed))
    with one_writer(run.out):
        result = train(dataset, tuned, training, run, start, replay)
        # Calibrated on the sources' programs, they would promise for the new device what nobody has seen there.
        result.predictor.calibration = None
        result.predictor.card["intervals"] = "none: see recipes/cross_calibration.py"
        result.predictor.save(result.model_dir)
    return result


def errors_by_device(predictor: Predictor, dataset: LatencyDataset, rows: np.ndarray) -> dict[str, dict[str, float]]:
    """Return the ``breakdown`` of the programs ``rows`` by device."""
    predicted, names = predict_rows(predictor, dataset, rows), dataset.devices[rows]
    return breakdown(dataset.latency_s[rows], predicted, dataset.task_ids[rows], names, names)
