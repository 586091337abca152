"""Everything that decides what a training run does, as plain frozen dataclasses: the one place of the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.model.config import CdmppConfig, ModelConfig, check_keys, config_from_dict, model_config
from cdmpp.platform.limits import Limits, check_choice, check_fields, numbers

_WEIGHTS = ("log_weight", "relative_weight", "label_mse_weight", "label_relative_weight")
_STEPS = {
    "batch_size": Limits(1, 10**6, "programs"),
    "lr": numbers(0, 10, above=True),
    "weight_decay": numbers(0, 10),
    "warmup": numbers(0, 1),
    "ema": numbers(0, 1 - 1e-9),
}
"""Limits of the settings that training and tuning share."""
STRATEGIES = ("auto", "ddp")


@dataclass(frozen=True)
class LossConfig:
    """The terms have these weights; their sum is minimised. See ``losses.py``."""

    LIMITS = {
        **dict.fromkeys((*_WEIGHTS, "domain_weight", "doubling_weight"), numbers(0, 1e6)),
        **dict.fromkeys(("huber_delta", "relative_limit"), numbers(0, 100, "log units", above=True)),
        "label_floor": numbers(0, 1e6, above=True),
        "device_balance": numbers(0, 1),
        "cmd_moments": Limits(1, 64),
    }

    log: str = "huber"
    """Shape of the error of log-latency: huber or mse."""
    log_weight: float = 1.0
    huber_delta: float = 0.1
    """Squared below this error of the log, straight above."""
    relative_weight: float = 0.3
    """Weight of |predicted - true| / true."""
    relative_limit: float = 1.0
    """Log units up to which over-predictions count exponentially; those beyond exp(limit) count linearly."""
    label_mse_weight: float = 0.0
    """Weight of the squared error of the standardised label."""
    label_relative_weight: float = 0.0
    """Weight of the relative error of the standardised label."""
    label_floor: float = 0.1
    """Smallest denominator of the latter."""
    device_balance: float = 0.0
    """0: every program counts alike; 1: every device does, whatever it has of programs; between: by that power."""
    domain: str = "none"
    """Distance of the latents to those of unlabelled programs of the target domain: none or cmd."""
    domain_weight: float = 0.1
    cmd_moments: int = 5
    doubling_weight: float = 0.0
    """Weight of log units by which matrix products with one size doubled are faster; model=library only."""

    def __post_init__(self) -> None:
        check_fields(self, "loss.")
        check_choice("loss.domain", self.domain, ("none", "cmd"))
        check_choice("loss.log", self.log, ("huber", "mse"))
        if not any(getattr(self, name) for name in _WEIGHTS):
            raise CdmppError(f"loss.{', loss.'.join(_WEIGHTS)} are all 0: nothing would be learned")


@dataclass(frozen=True)
class TrainerConfig:
    """The defaults are sized for two CPU cores and some thousand programs."""

    LIMITS = {
        **_STEPS,
        **dict.fromkeys(("epochs", "validate_every"), Limits(1, 10**6, "epochs")),
        "cycle_steps": Limits(1, 10**9),
        "grad_clip": numbers(0, 1e9),
        **dict.fromkeys(("length_groups", "members"), Limits(1, 64)),
        "interval_folds": Limits(0, 64),
        **dict.fromkeys(("devices", "nodes"), Limits(1, 1024)),
    }

    epochs: int = 20
    batch_size: int = 128
    lr: float = 1e-3
    """Base learning rate of AdamW."""
    weight_decay: float = 0.02
    """On matrices only."""
    schedule: str = "cosine"
    """``cosine`` rises and ends at zero; ``cyclic`` swings between lr/10 and 10*lr, as published."""
    warmup: float = 0.05
    """Share of all steps in which the rate rises."""
    cycle_steps: int = 2000
    """Half a period of ``cyclic``."""
    grad_clip: float = 1.0
    """Largest norm of the gradient; 0: off."""
    ema: float = 0.995
    """Decay of the running average of weights, which is what is validated and saved; 0: off."""
    precision: str = "32"
    """32 or bf16 (mixed, for GPUs)."""
    compile: bool = False
    """Use torch.compile."""
    length_groups: int = 2
    """A batch is computed in this many groups of like length. More: less padding, smaller kernels."""
    validate_every: int = 1
    """Epochs between validations, each of which may save the best model."""
    members: int = 1
    """Models trained with different seeds; the prediction is their geometric mean."""
    interval_folds: int = 0
    """Further models trained to calibrate intervals on all tasks, for few tasks (``calibrate_by_folds``); 0: none."""
    devices: int = 1
    """Processes on each machine that share every batch, a GPU each; on CPUs they share the cores."""
    nodes: int = 1
    """Machines that train together; more than one: start the run on each with torchrun."""
    strategy: str = "auto"
    """How processes share a batch, by Lightning's name: ``ddp``; ``auto`` is that where there are several."""

    def __post_init__(self) -> None:
        check_fields(self, "trainer.")
        check_choice("trainer.schedule", self.schedule, ("cosine", "cyclic"))
        check_choice("trainer.precision", self.precision, ("32", "bf16"))
        if self.strategy not in STRATEGIES:
            raise CdmppError(
                f"trainer.strategy={self.strategy} is not supported: no test has shown that it learns what one process "
                f"learns, as ddp does; one of {', '.join(STRATEGIES)}"
            )
        if self.interval_folds and self.interval_folds < 3:
            raise CdmppError(f"trainer.interval_folds must be 0 or at least 3, not {self.interval_folds}")


@dataclass(frozen=True)
class TrainConfig:
    """It holds the settings of model, loss and trainer."""

    model: ModelConfig = field(default_factory=CdmppConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> TrainConfig:
        """Read plain nested values; ``CdmppError`` for an unknown key, or a value of the wrong type or range."""
        check_keys(values, ("model", "loss", "trainer"))
        return TrainConfig(
            model_config(values.get("model", {})),
            config_from_dict(LossConfig, values.get("loss", {}), "loss"),
            config_from_dict(TrainerConfig, values.get("trainer", {}), "trainer"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain nested values; ``from_dict`` restores them."""
        return asdict(self)


@dataclass(frozen=True)
class TuneConfig:
    """These settings move the weights to the new device; what was fitted on the sources (scalers, ...) is kept."""

    LIMITS = {
        **_STEPS,
        "steps": Limits(1, 10**9),
        "replay": numbers(0, 1e3),
        "replay_weight": numbers(0, 1e6),
        "folds": Limits(0, 64),
    }

    steps: int = 400
    """Batches in all, rounded to whole epochs."""
    batch_size: int = 64
    lr: float = 5e-4
    weight_decay: float = 0.02
    warmup: float = 0.1
    ema: float = 0.98
    replay: float = 1.0
    """Source programs in a batch for each one of the new device, against forgetting; 0: none."""
    replay_weight: float = 1.0
    """Weight of each of these source programs in the loss."""
    folds: int = 5
    """Parts of the chosen tasks, for intervals: as many more models are tuned. 0: none, and no intervals."""

    def __post_init__(self) -> None:
        check_fields(self, "tuning.")

    def trainer(self, programs: int) -> TrainerConfig:
        """Return settings for so many programs an epoch.

        They validate once, at the end: the sources' error could only choose step zero.
        """
        epochs = max(1, round(self.steps / max(1, round(programs / self.batch_size))))
        same = {name: getattr(self, name) for name in ("batch_size", "lr", "weight_decay", "warmup", "ema")}
        return TrainerConfig(epochs=epochs, validate_every=epochs, length_groups=1, **same)


@dataclass(frozen=True)
class Run:
    """A run has this place and hardware; nothing here changes what is learned, except for the seed."""

    out: Path
    seed: int = 0
    """Seed of weights, batches and dropout. On a CPU the same seed and ``OMP_NUM_THREADS`` give the same figures."""
    progress: bool = True
    accelerator: str = "auto"
    """auto (a CUDA device where there is one), cpu or gpu."""
