"""fit(...): tensors and a configuration in, trained models and the course of their errors out."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

import cdmpp.training.compat  # noqa: F401  isort: skip  (before Lightning)
import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import CSVLogger

from cdmpp.model.build import Model, build_for
from cdmpp.model.regressor import CdmppModel
from cdmpp.training.checkpoints import WholeCheckpoints, load_checkpoint
from cdmpp.training.config import Run, TrainConfig, TrainerConfig
from cdmpp.training.endings import Endings
from cdmpp.training.inputs import FitInputs
from cdmpp.training.lit import LatencyModule
from cdmpp.training.processes import is_rank_zero
from cdmpp.training.threads import FreeThreads


def fit(
    inputs: FitInputs, config: TrainConfig, run: Run, start: Sequence[Model] = ()
) -> tuple[list[Model], list[dict[str, float]]]:
    """Train on the training rows, choose the best epoch on the validation rows.

    A run that was interrupted continues from its last checkpoint when started again with the same ``run.out``.
    With ``config.trainer.devices`` or ``nodes`` above one Lightning starts the calling script once more for each
    process; only the models of the process with rank zero are the best ones.
    ``run.out`` gets a folder ``member-*/`` (checkpoints, logs) for each member. With ``start`` copies of these models,
    one member each, go on. What was fitted with them (scalers, bins, prior, label transform) stays; a new device gets
    costs of its own.

    Returns:
        Each member with the weights of its best validation; one row a validation of member, epoch, train_loss,
        val_mape, val_median_ape, seconds.
    """
    models, history = [], []
    for member in range(len(start) or config.trainer.members):
        seed, folder = run.seed + 1000 * member, run.out / f"member-{member}"
        torch.manual_seed(seed)
        if start:
            model = copy.deepcopy(start[member]).requires_grad_(True).train().to(inputs.programs.kinds.device)
            if isinstance(model, CdmppModel):
                model.learn_device(inputs.programs, inputs.train)
        else:
            model = build_for(config.model, inputs.programs, inputs.train)
        module = LatencyModule(model, config, inputs, seed)
        _train_member(module, folder, run.progress)
        models.append(module.average.eval())
        history += [{"member": float(member), **row} for row in module.history]
    return models, history


def _train_member(module: LatencyModule, folder: Path, progress: bool) -> None:
    on_gpu = module.inputs.programs.kinds.is_cuda
    if on_gpu:
        torch.set_float32_matmul_precision("high")
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    last, endings = folder / "checkpoints" / "last.ckpt", Endings()
    with warnings.catch_warnings():
        noise = "does not have many workers|Checkpoint directory|logging interval|LeafSpec|all_gather is|sync_dist=True"
        warnings.filterwarnings("ignore", f".*({noise}).*")
        alone = module.config.trainer.devices * module.config.trainer.nodes == 1
        threads = [_FreeThreads()] if alone and not on_gpu else []
        trainer = _trainer(module.config.trainer, folder, progress, on_gpu, [endings, *threads])
        if last.is_file():
            load_checkpoint(last, module)  # one that is damaged is refused here, in our words
        with endings.told(trainer, folder):
            trainer.fit(module, ckpt_path=last if last.is_file() else None, weights_only=True)
    if is_rank_zero():
        load_checkpoint(folder / "checkpoints" / "best.ckpt", module)


class _FreeThreads(Callback):
    """A thread for each free core: other work may come and go between two epochs."""

    def __init__(self) -> None:
        self.threads = FreeThreads()
        self._before = torch.get_num_threads()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, LatencyModule)
        if pl_module.compiled is None:
            self.threads.adapt()
        else:
            pl_module.compiled.threads = self.threads.count()
            torch.set_num_threads(1)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        torch.set_num_threads(self._before)


def _trainer(config: TrainerConfig, folder: Path, progress: bool, on_gpu: bool, more: Sequence[Callback]) -> pl.Trainer:
    # Two callbacks: `save_last` of one would write only where the best improves, and a resumed run would go far back.
    checkpoints = folder / "checkpoints"
    best = ModelCheckpoint(checkpoints, "best", monitor="val/mape", mode="min", enable_version_counter=False)
    latest = ModelCheckpoint(checkpoints, "last", enable_version_counter=False)
    return pl.Trainer(
        accelerator="gpu" if on_gpu else "cpu",
        devices=config.devices,
        num_nodes=config.nodes,
        # A single process needs no group of processes, also where ``ddp`` was asked for.
        strategy="ddp" if config.devices * config.nodes > 1 else "auto",
        precision="bf16-mixed" if config.precision == "bf16" else "32-true",
        max_epochs=config.epochs,
        gradient_clip_val=config.grad_clip or None,
        check_val_every_n_epoch=min(config.validate_every, config.epochs),
        reload_dataloaders_every_n_epochs=1,
        num_sanity_val_steps=0,
        logger=CSVLogger(folder, name="logs"),
        callbacks=[best, latest, *more, *([RichProgressBar(refresh_rate=5)] if progress else [])],
        enable_progress_bar=progress,
        enable_model_summary=False,
        use_distributed_sampler=False,
        log_every_n_steps=10**9,
        plugins=[WholeCheckpoints()],
    )
