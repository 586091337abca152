"""TrainConfig: everything that decides what a training run does, as plain frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.model.build import ModelConfig, config_from_dict
from cdmpp.model.regressor import CdmppConfig

LOG_LOSSES = ("huber", "l1", "mse")
DOMAIN_LOSSES = ("none", "cmd", "mmd", "coral")
SCHEDULES = ("cosine", "onecycle", "cyclic", "constant")
PRECISIONS = ("32", "bf16")


@dataclass(frozen=True)
class LossConfig:
    """Weights of the terms; their sum is minimised. See ``losses.py``."""

    log: str = "huber"
    """Shape of the error of log-latency: huber, l1 or mse."""
    log_weight: float = 1.0
    huber_delta: float = 0.1
    relative_weight: float = 0.3
    """Weight of |predicted - true| / true, linear beyond ``relative_limit``."""
    relative_limit: float = 1.0
    """In log units: over-predictions beyond exp(limit) grow linearly instead of exponentially."""
    label_mse_weight: float = 0.0
    label_relative_weight: float = 0.0
    label_floor: float = 0.1
    """Smallest denominator of the relative error of standardised labels."""
    rank_weight: float = 0.0
    """Weight of the pairwise order within a task, see ``ranking.py``."""
    rank_scale: float = 0.1
    domain: str = "none"
    """How far the latents are from those of unlabelled programs of the target domain: none, cmd, mmd or coral."""
    domain_weight: float = 0.1
    cmd_moments: int = 5

    def __post_init__(self) -> None:
        if self.domain not in DOMAIN_LOSSES:
            raise CdmppError(f"loss.domain is {self.domain!r}; one of {', '.join(DOMAIN_LOSSES)}")
        if self.log not in LOG_LOSSES:
            raise CdmppError(f"loss.log is {self.log!r}; one of {', '.join(LOG_LOSSES)}")


@dataclass(frozen=True)
class TrainerConfig:
    epochs: int = 20
    batch_size: int = 256
    lr: float = 1e-3
    weight_decay: float = 0.02
    schedule: str = "cosine"
    """``cosine`` and ``onecycle`` end at zero; ``cyclic`` swings between lr/10 and 10*lr."""
    warmup: float = 0.05
    """Share of all steps in which the rate rises (``onecycle``: at least 0.3)."""
    cycle_steps: int = 2000
    """Half a period of ``cyclic``."""
    grad_clip: float = 1.0
    ema: float = 0.995
    """Decay of the running average of weights that is validated and saved; 0 turns it off."""
    precision: str = "32"
    compile: bool = False
    length_groups: int = 2
    """A batch is computed in this many groups of like length. More: less padding, smaller kernels."""
    validate_every: int = 1
    """Epochs between validations, each of which may save the best model."""
    task_weight_power: float = 0.0
    """Programs of a task with n training programs weigh n^-power (normalised): 0 all equal, 1 tasks equal."""
    members: int = 1
    """Models trained with different seeds; the prediction is their geometric mean."""
    interval_folds: int = 0
    """Further models that are trained to calibrate the intervals on all tasks, see ``calibrate_by_folds``; 0: none."""
    devices: int = 1
    """Processes on each machine that share every batch, a GPU each; on CPUs they share the cores."""
    nodes: int = 1
    """Machines that train together."""

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise CdmppError(f"trainer.schedule is {self.schedule!r}; one of {', '.join(SCHEDULES)}")
        if self.precision not in PRECISIONS:
            raise CdmppError(f"trainer.precision is {self.precision!r}; one of {', '.join(PRECISIONS)}")
        for name in ("epochs", "batch_size", "length_groups", "validate_every", "members", "devices", "nodes"):
            if getattr(self, name) < 1:
                raise CdmppError(f"trainer.{name} must be at least 1, not {getattr(self, name)}")
        if self.interval_folds and self.interval_folds < 3:
            raise CdmppError(f"trainer.interval_folds must be 0 or at least 3, not {self.interval_folds}")


@dataclass(frozen=True)
class TrainConfig:
    model: ModelConfig = field(default_factory=CdmppConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> TrainConfig:
        """From plain nested values (groups ``model``, ``loss``, ``trainer``).

        Raises:
            CdmppError: a key that nothing reads, or a value of the wrong type or range.
        """
        unknown = sorted(set(values) - {"model", "loss", "trainer"})
        if unknown:
            raise CdmppError(f"unknown settings {', '.join(unknown)}; the groups are model, loss and trainer")
        return TrainConfig(
            config_from_dict(values.get("model", {})),
            config_from_dict(values.get("loss", {}), LossConfig, "loss"),
            config_from_dict(values.get("trainer", {}), TrainerConfig, "trainer"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain nested values; ``from_dict`` restores them."""
        return asdict(self)
