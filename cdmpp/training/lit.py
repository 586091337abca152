"""LatencyModule: one training run as Lightning sees it. Its checkpoints hold tensors and plain numbers only."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import cdmpp.training.compat  # noqa: F401  isort: skip  (before Lightning)
import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from cdmpp.data.batching import Batch, TrainingBatches, ordered_batches
from cdmpp.errors import CdmppError
from cdmpp.model.build import Model
from cdmpp.model.compiled import compiled
from cdmpp.model.compiled_gradient import CompiledGradient
from cdmpp.model.doubled_sizes import doubled_sizes
from cdmpp.model.eager import EagerModel
from cdmpp.model.old_names import current_names
from cdmpp.model.output import Output
from cdmpp.model.prior_table import PriorTable
from cdmpp.model.regressor import CdmppModel
from cdmpp.training.config import TrainConfig, TrainerConfig
from cdmpp.training.inputs import FitInputs
from cdmpp.training.losses import domain_distance, hybrid_loss
from cdmpp.training.shared_batch import SharedBatch


class LatencyModule(pl.LightningModule):
    """It trains ``model`` and keeps a running average of its weights; ``seed`` and epoch decide batches and dropout."""

    def __init__(self, model: Model, config: TrainConfig, inputs: FitInputs, seed: int) -> None:
        super().__init__()
        self.model = model
        self.average = copy.deepcopy(model).requires_grad_(False)
        self.config, self.inputs, self.seed = config, inputs, seed
        # A bare list of batches would mean several loaders to Lightning.
        batches: Any = list(ordered_batches(inputs.programs, inputs.validation))
        self.validation: DataLoader[Batch] = DataLoader(batches, batch_size=None, collate_fn=lambda batch: batch)
        self.history: list[dict[str, float]] = []
        self._averaged: list[list[Tensor]] = [list(one.parameters()) for one in (self.average, model)]
        self._priors = PriorTable.build(model, inputs.programs) if isinstance(model, CdmppModel) else None
        # A function, not a module: as a module it would enter the checkpoint a second time.
        forward = torch.compile(model.forward, dynamic=True) if config.trainer.compile else model.forward
        self._forward = self._with_priors(forward)
        self._compiled: CompiledGradient | None = None
        if isinstance(model, CdmppModel) and self._priors is not None and self._may_be_compiled(model):
            self._compiled = CompiledGradient(model, inputs.programs, self._priors)
        self._losses: list[Tensor] = []
        self._errors: list[Tensor] = []
        self._started = time.monotonic()

    def _with_priors(self, forward: Callable[..., Output]) -> Callable[[Batch], Output]:
        """Give the model what its priors say of a batch: no step changes that."""
        table = self._priors
        return forward if table is None else lambda batch: forward(batch, table.take(batch))

    def _may_be_compiled(self, model: CdmppModel) -> bool:
        trainer = self.config.trainer
        return not trainer.compile and trainer.precision == "32" and CompiledGradient.fits(model, self.inputs.programs)

    @property
    def compiled(self) -> CompiledGradient | None:
        """Return what computes the passes in place of torch; None where torch does."""
        return self._compiled

    def _outputs(self, groups: Sequence[Any]) -> Output:
        """Answer the programs of ``groups``, one after the other."""
        if self._compiled is not None:
            return self._compiled.outputs(groups)
        return Output(*(torch.cat(column) for column in zip(*map(self._forward, groups), strict=True)))

    def train_dataloader(self) -> TrainingBatches:
        """Return a new set of random batches every epoch."""
        return self._batches(self.current_epoch)

    def val_dataloader(self) -> DataLoader:
        """Return the same batches every time."""
        return self.validation

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Leave batches as they are: they are gathered on the device already."""
        return batch

    @property
    def _shared(self) -> SharedBatch:
        return SharedBatch(self.global_rank, self.trainer.world_size, self._gathered)

    def _gathered(self, values: Tensor) -> Tensor:
        found = self.all_gather(values, sync_grads=True)
        assert isinstance(found, Tensor)
        return found

    def on_fit_start(self) -> None:
        """Raise ``CdmppError`` where processes that train together have unlike programs, such as other tasks chosen."""
        if self.trainer.world_size == 1:
            return
        own = torch.tensor(self.inputs.digest, dtype=torch.int64, device=self.device)
        if len(all_ := self._gathered(own).unique()) > 1:
            raise CdmppError(
                f"{self.trainer.world_size} processes train together, and have {len(all_)} different sets of programs "
                "or labels: give each the same data, settings and seed"
            )

    def _batches(self, epoch: int) -> TrainingBatches:
        rows, replay, trainer = self.inputs.train, self.inputs.replay, self.config.trainer
        if replay is not None:
            count = min(len(replay.rows), round(replay.ratio * len(rows)))
            drawn = np.random.default_rng((self.seed, epoch, 1)).choice(replay.rows, count, replace=False)
            rows = np.concatenate([rows, drawn])
        programs, share = self.inputs.programs, (self.global_rank, self.trainer.world_size)
        padded = self._compiled is None
        return TrainingBatches(
            programs, rows, trainer.batch_size, self.seed, epoch, trainer.length_groups, share, padded
        )

    def on_train_epoch_start(self) -> None:
        """Seed dropout: processes must not drop the same of their programs."""
        torch.manual_seed(self.seed * 1_000_003 + self.current_epoch + 10_000 * self.global_rank)
        self._losses, self._started = [], time.monotonic()

    def training_step(self, groups: tuple[Any, ...], batch_idx: int) -> Tensor:
        """Compute the loss of one batch in ``groups`` of programs of like length."""
        output = self._outputs(groups)
        labels, weights = (torch.cat([getattr(g, name) for g in groups]) for name in ("log_latency", "weights"))
        total = weights.sum()
        if self.trainer.world_size > 1:
            # Gradients are averaged over processes: this makes them those of the mean over the whole batch.
            total = self.trainer.strategy.reduce(total, reduce_op="mean")
        loss = hybrid_loss(self.config.loss, output, labels, weights, self.model.label_transform, total)
        if self.config.loss.doubling_weight and isinstance(self.model, EagerModel):
            loss = loss + self.config.loss.doubling_weight * self._doubling_gap(groups, output, batch_idx)
        if len(self.inputs.unlabelled):
            loss = loss + self.config.loss.domain_weight * self._domain_gap(output.hidden, batch_idx)
        self._losses.append(loss.detach())
        return loss

    def _doubling_gap(self, groups: tuple[Batch, ...], output: Output, step: int) -> Tensor:
        """Average log units by which this batch's matrix products are faster once a random size of each is doubled."""
        generator = np.random.default_rng((self.seed, self.current_epoch, step, 2))
        shared, sizes = self._shared, [len(group.codes) for group in groups]
        programs = int(shared.sum(torch.tensor(sum(sizes), device=output.log_latency.device)))
        # Programs of processes that share a batch are doubled as if one computed it.
        choices = torch.from_numpy(shared.part(generator.random(programs))).to(output.log_latency.device).split(sizes)
        gaps, before = [], output.log_latency.split(sizes)
        for group, own, choice in zip(groups, before, choices, strict=True):
            vectors, is_one = doubled_sizes(group.codes[:, 1:], choice)
            doubled = group._replace(codes=torch.cat([group.codes[:, :1], vectors], dim=1))
            products = Batch(*(column[is_one] for column in doubled))
            gaps.append((own[is_one] - self._forward(products).log_latency).clamp_min(0.0).sum())
        return torch.stack(gaps).sum() / (programs / shared.ranks)  # gradients are averaged over processes

    def _domain_gap(self, hidden: Tensor, step: int) -> Tensor:
        """Distance between this batch's latents and those of as many random unlabelled programs."""
        pool, shared = self.inputs.unlabelled, self._shared
        generator = np.random.default_rng((self.seed, self.current_epoch, step))
        count = int(shared.sum(torch.tensor(len(hidden), device=hidden.device)))
        rows = shared.part(generator.choice(pool, min(count, len(pool)), False))
        other = self._outputs([self.inputs.programs.batch(rows)]).hidden if len(rows) else hidden[:0]
        return domain_distance(self.config.loss, hidden, other, shared.mean)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Move the average towards the weights."""
        # A short memory at first: the average must not hang on to the untrained weights.
        decay = min(self.config.trainer.ema, (1 + self.global_step) / (10 + self.global_step))
        with torch.no_grad():
            averaged, current = self._averaged
            torch._foreach_lerp_(averaged, current, 1.0 - decay)

    def on_validation_epoch_start(self) -> None:
        """Copy the buffers: they are not averaged."""
        for averaged, current in zip(self.average.buffers(), self.model.buffers(), strict=True):
            averaged.copy_(current)
        self._errors = []

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Compute the errors of the averaged weights."""
        if self._compiled is not None and isinstance(self.average, CdmppModel):
            rows, threads = batch.rows.numpy(), self._compiled.threads
            answers = compiled(self.average).answers(self.inputs.programs, rows, threads)
            log_latency = torch.from_numpy(answers.log_latency)
        else:
            log_latency = self._with_priors(self.average)(batch).log_latency
        difference = log_latency.float() - batch.log_latency
        self._errors.append(torch.expm1(difference).abs())

    def on_validation_epoch_end(self) -> None:
        """Add one row to the history."""
        errors = torch.cat(self._errors)
        row = {
            "epoch": float(self.current_epoch),
            "train_loss": self._train_loss(),
            "val_mape": 100 * float(errors.mean()),
            "val_median_ape": 100 * float(errors.median()),
            "seconds": time.monotonic() - self._started,
        }
        self.history.append(row)
        names = {"train/loss": "train_loss", "val/mape": "val_mape", "val/median_ape": "val_median_ape"}
        self.log_dict({shown: row[name] for shown, name in names.items()}, prog_bar=True)

    def _train_loss(self) -> float:
        if not self._losses:
            return float("nan")
        loss = torch.stack(self._losses).mean()
        return float(loss if self.trainer.world_size == 1 else self.trainer.strategy.reduce(loss, reduce_op="mean"))

    def configure_optimizers(self) -> Any:
        """Take AdamW and the schedule of its rate; biases, norms and embeddings of single rows do not decay."""
        config, parameters = self.config.trainer, list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        optimiser = torch.optim.AdamW(groups, lr=config.lr, fused=True)
        total = len(self._batches(0)) * config.epochs
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate_factor(config, step, total))
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the history."""
        checkpoint["history"] = self.history

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on from there."""
        checkpoint["state_dict"] = current_names(checkpoint["state_dict"])
        self.history = list(checkpoint["history"])


def rate_factor(config: TrainerConfig, step: int, total_steps: int) -> float:
    """Return the factor of the base rate at ``step`` (0-based) of ``total_steps``."""
    if config.schedule == "cyclic":
        place = step % (2 * config.cycle_steps) / config.cycle_steps
        return 0.1 + 9.9 * (place if place <= 1 else 2 - place)
    warmup = max(1.0, config.warmup * total_steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    progress = (step - warmup) / max(1.0, total_steps - warmup)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
