"""Fine-tuning: teach a model a device from the labels of a few tasks, without it forgetting the devices it knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cdmpp.data.splits import Split
from cdmpp.devices import sheets_of
from cdmpp.errors import CdmppError, DataError
from cdmpp.predict.predictor import Predictor
from cdmpp.predict.rows import predict_rows
from cdmpp.training.config import LossConfig, TrainConfig, TrainerConfig
from cdmpp.training.fit import FitResult, Replay, train
from cdmpp.training.metrics import latency_metrics
from cdmpp.training.processes import one_writer

if TYPE_CHECKING:
    from cdmpp.data.dataset import LatencyDataset


@dataclass(frozen=True)
class TuneConfig:
    """How the weights move to the new device; ``conf/finetune.yaml`` explains the fields."""

    steps: int = 400
    batch_size: int = 64
    lr: float = 5e-4
    weight_decay: float = 0.02
    warmup: float = 0.1
    ema: float = 0.98
    replay: float = 1.0
    """Source programs in a batch for each one of the new device."""
    replay_weight: float = 1.0
    """Of each of them in the loss."""
    folds: int = 5
    """Of the chosen tasks, for intervals: as many more models are tuned. 0: none, and no intervals."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 1:
            raise CdmppError(f"tuning.steps={self.steps} and tuning.batch_size={self.batch_size} must be at least 1")
        if self.replay < 0 or self.replay_weight < 0:
            raise CdmppError("tuning.replay and tuning.replay_weight must not be negative")

    def trainer(self, programs: int) -> TrainerConfig:
        """For so many programs an epoch. One validation, at the end: the sources' error could only choose step zero."""
        epochs = max(1, round(self.steps / max(1, round(programs / self.batch_size))))
        return TrainerConfig(
            epochs=epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            weight_decay=self.weight_decay,
            warmup=self.warmup,
            ema=self.ema,
            validate_every=epochs,
            length_groups=1,
        )


def fine_tune(
    start: Predictor,
    dataset: LatencyDataset,
    split: Split,
    tasks: Sequence[str],
    config: TuneConfig,
    out: Path | str,
    seed: int,
    loss: LossConfig | None = None,
    progress: bool = False,
    accelerator: str = "auto",
) -> FitResult:
    """Train all weights of ``start`` on the target's programs of ``tasks``, mixed with programs of the sources.

    Args:
        start: stays as it is; a copy is trained. Its fitted statistics are kept, see ``train``.
        split: by device: ``pool`` the target's programs of which those in ``tasks`` are learned from, ``train`` the
            sources' programs to replay, ``validation`` of the sources. ``test`` is never looked at.

    Raises:
        DataError: a task without a labelled program in the pool, or one that test or validation hold.
    """
    names, wanted = np.asarray(dataset.task_ids), sorted(set(tasks))
    for part, rows in (("test", split.test), ("validation", split.validation)):
        if both := sorted(set(wanted) & set(names[rows].tolist())):
            raise DataError(f"{len(both)} tasks to fine-tune on are in the {part} part, the first is {both[0]}")
    if lacking := sorted(set(wanted) - set(names[split.pool].tolist())):
        raise DataError(f"{len(lacking)} of {len(wanted)} tasks have no labelled program, the first is {lacking[0]}")
    rows = split.pool[np.isin(names[split.pool], wanted)]
    rest = np.setdiff1d(split.pool, rows)
    tuned = replace(split, train=rows, pool=rest)
    replay = Replay(split.train, config.replay, config.replay_weight) if config.replay and len(split.train) else None
    replayed = 0 if replay is None else min(len(split.train), round(config.replay * len(rows)))
    training = TrainConfig(
        start.models[0].config, replace(loss or LossConfig(), domain="none"), config.trainer(len(rows) + replayed)
    )
    with one_writer(Path(out)):
        result = train(
            dataset,
            tuned,
            sheets_of(dataset.devices),
            training,
            out,
            seed,
            progress=progress,
            accelerator=accelerator,
            initial=start,
            replay=replay,
        )
        # Calibrated on the sources' programs, they would promise for the new device what nobody has seen there.
        result.predictor.calibration = None
        result.predictor.card["intervals"] = "none: see training/cross_calibration.py"
        result.predictor.save(result.model_dir)
    return result


def errors_by_device(predictor: Predictor, dataset: LatencyDataset, rows: np.ndarray) -> dict[str, dict[str, float]]:
    """``latency_metrics`` of the programs ``rows`` for each device among them."""
    names, tasks = np.asarray(dataset.devices)[rows], np.asarray(dataset.task_ids)[rows]
    truth, predicted = dataset.latency_s[rows], predict_rows(predictor, dataset, rows)
    return {
        str(name): latency_metrics(truth[names == name], predicted[names == name], tasks[names == name])
        for name in np.unique(names)
    }
