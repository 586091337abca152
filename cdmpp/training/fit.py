"""train(...): a data set, a split and a configuration in; a model folder and its validation figures out."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import cdmpp.training.compat  # noqa: F401  isort: skip  (before Lightning)
import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import CSVLogger

from cdmpp.data.batching import ProgramTensors
from cdmpp.data.splits import Split
from cdmpp.data.subsample import sample_rows
from cdmpp.devices import Device
from cdmpp.errors import CdmppError, DataError
from cdmpp.model.build import Model, build_for
from cdmpp.model.regressor import CdmppModel
from cdmpp.predict.predictor import Predictor, device_group
from cdmpp.training.checkpoints import WholeCheckpoints, read_checkpoint
from cdmpp.training.config import TrainConfig
from cdmpp.training.lit import LatencyModule
from cdmpp.training.metrics import latency_metrics, mape_factor
from cdmpp.training.processes import is_first, local_rank, one_writer
from cdmpp.training.run_folder import claim_folder, run_card, write_history
from cdmpp.uncertainty.calibration import calibrate

if TYPE_CHECKING:
    from cdmpp.data.dataset import LatencyDataset

_SKETCHED = 20_000
"""Training programs that the out-of-range score is fitted on: more would not change it, only take time."""


@dataclass(frozen=True)
class Replay:
    """Programs of what a model knows already, mixed into the batches that teach it something new."""

    rows: np.ndarray
    """(n,) rows of the data set, none of them in the test or validation part."""
    ratio: float = 1.0
    """How many of them an epoch sees for each program of ``split.train``, drawn anew every epoch."""
    weight: float = 1.0
    """Of each in the loss."""


@dataclass(frozen=True)
class FitResult:
    model_dir: Path
    """Folder that ``cdmpp.load`` reads."""
    val_metrics: dict[str, float]
    """``latency_metrics`` of the saved model on the validation part."""
    history: list[dict[str, float]]
    """One row a validation: member, epoch, train_loss, val_mape, val_median_ape, seconds."""
    predictor: Predictor


def train(
    dataset: LatencyDataset,
    split: Split,
    device: Device | Mapping[str, Device],
    config: TrainConfig,
    out_dir: Path | str,
    seed: int,
    progress: bool = True,
    accelerator: str = "auto",
    unlabelled: np.ndarray | None = None,
    initial: Predictor | None = None,
    replay: Replay | None = None,
) -> FitResult:
    """Train on ``split.train``, choose the best epoch on ``split.validation``; ``split.test`` is never looked at.

    A run that was interrupted continues from its last checkpoint when started again with the same ``out_dir``.
    With ``config.trainer.devices`` or ``nodes`` above one Lightning starts the calling script once more for each
    process; only the first returns from here.

    Args:
        dataset: labelled programs with their compact ASTs.
        device: the device of all programs, or each device that occurs by name.
        out_dir: gets ``model/`` (the result), ``member-*/`` (checkpoints, logs) and ``history.csv``.
        seed: of weights, batches and dropout. On a CPU the same seed gives the same figures.
        accelerator: ``auto``, ``cpu`` or ``gpu``.
        unlabelled: (n,) rows of ``dataset`` from the target domain for ``loss.domain``; their labels are not used.
            None: the split's pool.
        initial: go on from these weights, all of which are trained, instead of fresh ones of ``config.model``; one
            member each. What was fitted with them (scalers, bins, anchor, label transform) stays, so that the
            function they compute is unchanged where training begins; only datasheet columns in which the devices
            now differ for the first time are opened, with weight zero, and a new device gets costs of its own.
        replay: further training programs of which each epoch sees a fresh sample, against forgetting.

    Raises:
        DataError: an empty part, or unlabelled or replayed programs that are part of the test.
        CdmppError: ``out_dir`` belongs to a run of other data or another configuration, or to one that still goes on.
    """
    out = Path(out_dir)
    pool = np.zeros(0, np.int64)
    if config.loss.domain != "none":
        pool = np.asarray(split.pool if unlabelled is None else unlabelled, np.int64)
        if len(pool) == 0:
            raise CdmppError(
                f"loss.domain={config.loss.domain} needs unlabelled programs of the target domain, and split "
                f"{split.name!r} sets none apart: use split=by_device, or a by_network split with "
                "split.unlabelled_fraction=0.25"
            )
    replayed = np.zeros(0, np.int64) if replay is None else np.asarray(replay.rows, np.int64)
    train_rows, validation_rows = _checked_rows(split, pool, replayed)
    learned = np.concatenate([train_rows, replayed])
    # Programs of the test part never reach the tensors a model trains on.
    used = np.unique(np.concatenate([learned, validation_rows, pool]))
    names = np.asarray(dataset.devices)
    sheets = {device.name: device} if isinstance(device, Device) else dict(device)
    sheets = {name: sheets[name] for name in sorted(sheets) if name in set(names[used].tolist())}
    seen = set(names[learned].tolist()) | (set(initial.trained_on) if initial else set())
    devices = {**(initial.trained_on if initial else {}), **{name: sheets[name] for name in sheets if name in seen}}
    with one_writer(out):
        if is_first():
            claim_folder(out, config, seed, dataset, split, initial, replayed)
        weights = np.ones(len(used), np.float32)
        in_training = np.isin(used, train_rows)
        tasks = np.asarray(dataset.task_ids)[used]
        weights[in_training] = task_weights(tasks[in_training], config.trainer.task_weight_power)
        if replay is not None:
            weights[np.isin(used, replayed)] = replay.weight
        # Nor do the labels of the pool, which may not even exist.
        latency_s = np.where(np.isin(used, np.concatenate([learned, validation_rows])), dataset.latency_s[used], 1.0)
        programs = ProgramTensors.build(dataset.asts, sheets, names[used], latency_s, weights, tasks, used)
        programs = programs.to(_torch_device(accelerator))

        def places(rows: np.ndarray) -> np.ndarray:
            return np.searchsorted(used, rows)

        models, history = [], []
        for member in range(len(initial.models) if initial else config.trainer.members):
            model, rows = _train_member(
                programs,
                _continued(initial.models[member], programs, places(train_rows)) if initial else None,
                places(train_rows),
                places(validation_rows),
                places(pool) if len(pool) else None,
                None if replay is None else (places(replayed), replay.ratio),
                config,
                out / f"member-{member}",
                seed + 1000 * member,
                progress,
            )
            models.append(model)
            history += [{"member": float(member), **row} for row in rows]
        if not is_first():
            raise SystemExit(0)  # its part is done; the first process has the model
        predictor = Predictor(models, devices, features=dataset.features)
        truth, its_tasks = dataset.latency_s[validation_rows], np.asarray(dataset.task_ids)[validation_rows]
        if initial:  # the validation part may be of other devices than those that are learned now
            predictor.log_shift = initial.log_shift
        else:
            unshifted = predictor.predict_tensors(programs, places(validation_rows))
            predictor.log_shift = float(np.log(mape_factor(truth, unshifted)))
        examined = predictor.examine(programs, places(validation_rows))
        predicted = np.exp(examined.log_prediction)
        val_metrics = latency_metrics(truth, predicted, its_tasks)
        learned_from = predictor.examine(programs, places(sample_rows(train_rows, _SKETCHED)))
        known = {**devices, **sheets}
        groups = [device_group(known[name]) for name in names[validation_rows].tolist()]
        predictor.calibration = calibrate(learned_from, examined, np.log(truth), its_tasks, groups)
        predictor.card.update(run_card(dataset, split, config, seed, validation_rows, predicted, val_metrics))
        predictor.card["intervals"] = predictor.calibration.describe()
        predictor.save(out / "model")
        write_history(out / "history.csv", history)
        return FitResult(out / "model", val_metrics, history, predictor)


def task_weights(task_ids: np.ndarray, power: float) -> np.ndarray:
    """(n,) float32 loss weights, n_task^-power, mean 1."""
    _, inverse, counts = np.unique(task_ids, return_inverse=True, return_counts=True)
    weights = counts[inverse].astype(np.float64) ** -power
    return (weights / weights.mean()).astype(np.float32)


def _train_member(
    programs: ProgramTensors,
    model: Model | None,
    train_rows: np.ndarray,
    validation_rows: np.ndarray,
    unlabelled_rows: np.ndarray | None,
    replay: tuple[np.ndarray, float] | None,
    config: TrainConfig,
    folder: Path,
    seed: int,
    progress: bool,
) -> tuple[Model, list[dict[str, float]]]:
    torch.manual_seed(seed)
    model = model or build_for(config.model, programs, train_rows)
    module = LatencyModule(model, config, programs, train_rows, validation_rows, unlabelled_rows, seed, replay)
    # Two callbacks: `save_last` of one would write only where the best improves, and a resumed run would go far back.
    best = ModelCheckpoint(folder / "checkpoints", "best", monitor="val/mape", mode="min", enable_version_counter=False)
    latest = ModelCheckpoint(folder / "checkpoints", "last", enable_version_counter=False)
    on_gpu = programs.kinds.is_cuda
    if on_gpu:
        torch.set_float32_matmul_precision("high")
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*(does not have many workers|Checkpoint directory|logging interval|LeafSpec).*"
        )
        trainer = pl.Trainer(
            accelerator="gpu" if on_gpu else "cpu",
            devices=config.trainer.devices,
            num_nodes=config.trainer.nodes,
            strategy="ddp" if config.trainer.devices * config.trainer.nodes > 1 else "auto",
            precision="bf16-mixed" if config.trainer.precision == "bf16" else "32-true",
            max_epochs=config.trainer.epochs,
            gradient_clip_val=config.trainer.grad_clip or None,
            check_val_every_n_epoch=min(config.trainer.validate_every, config.trainer.epochs),
            reload_dataloaders_every_n_epochs=1,
            num_sanity_val_steps=0,
            logger=CSVLogger(folder, name="logs"),
            callbacks=[best, latest, *([RichProgressBar(refresh_rate=5)] if progress else [])],
            enable_progress_bar=progress,
            enable_model_summary=False,
            use_distributed_sampler=False,
            log_every_n_steps=10**9,
            plugins=[WholeCheckpoints()],
        )
        last = folder / "checkpoints" / "last.ckpt"
        if last.is_file():
            read_checkpoint(last, module)
        try:
            trainer.fit(module, ckpt_path=last if last.is_file() else None, weights_only=True)
        except SystemExit as stop:  # so Lightning ends a run where Ctrl-C was pressed
            if stop.code == 1 and trainer.interrupted:
                raise KeyboardInterrupt from None
            raise
    if not is_first():
        return module.average.eval(), module.history
    chosen = read_checkpoint(folder / "checkpoints" / "best.ckpt", module, programs.kinds.device)
    module.load_state_dict(chosen["state_dict"])
    return module.average.eval(), module.history


def _continued(model: Model, programs: ProgramTensors, rows: np.ndarray) -> Model:
    """A trainable copy of ``model`` that knows what the labelled ``rows`` tell of a new device as a whole."""
    copied = copy.deepcopy(model).requires_grad_(True).train().to(programs.kinds.device)
    if isinstance(copied, CdmppModel):
        copied.learn_device(programs, rows)
    return copied


def _checked_rows(split: Split, pool: np.ndarray, replayed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    parts = {"train": split.train, "validation": split.validation}
    for name, rows in parts.items():
        if len(rows) == 0:
            raise DataError(
                f"the {name} part of split {split.name!r} is empty: there is nothing to learn from or choose by"
            )
    if np.isin(pool, split.test).any():
        raise DataError("unlabelled programs for the domain loss must not be part of the test programs")
    for name, rows in (("test", split.test), ("validation", split.validation)):
        if np.isin(replayed, rows).any():
            raise DataError(f"replayed programs must not be part of the {name} programs")
    return np.asarray(split.train, np.int64), np.asarray(split.validation, np.int64)


def _torch_device(accelerator: str) -> str:
    if accelerator not in ("auto", "cpu", "gpu"):
        raise CdmppError(f"accelerator is {accelerator!r}; one of auto, cpu, gpu")
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise CdmppError("accelerator=gpu, but torch sees no CUDA device; use accelerator=cpu or install a CUDA torch")
    return f"cuda:{local_rank()}" if accelerator != "cpu" and torch.cuda.is_available() else "cpu"
