"""PartitionRecord: what a real run of stages measured, to and from JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.errors import DataError
from cdmpp.platform.files import read_json, write_json

KINDS = ("data", "forward", "backward", "update", "receive", "send", "wait")
"""What a stage spends time on: reading examples, its passes, updates, waiting for messages of neighbours, waiting until
it may send, and waiting for its own other thread."""
_WARM = 4
"""The first of so many equal parts of the steps counts as warm-up."""


@dataclass(frozen=True)
class StageRecord:
    """The seconds and bytes that one stage was measured with."""

    stage: int
    layers: tuple[int, int]
    """Its first layer, and the first one after it."""
    seconds: Mapping[str, tuple[float, ...]]
    """Seconds in each step, by one of ``KINDS``; the passes of a micro-batch belong to its own step."""
    ends_s: tuple[float, ...]
    """Seconds from the start of the run to the end of each step on this stage."""
    stash_bytes: int
    """Most bytes that it kept of micro-batches under way."""
    live: int
    """Most micro-batches under way at a time."""
    staleness: int
    """Most updates between the weights of a forward pass and the update with its gradient."""
    versions: int
    """Versions of its weights that it holds."""
    parameter_bytes: int
    """Bytes of one version."""


@dataclass(frozen=True)
class StepLoss:
    """Mean loss of the examples of one step, with the weights of their forward passes."""

    step: int
    samples: int
    """Examples of all steps up to this one."""
    loss: float


@dataclass(frozen=True)
class HeldOut:
    """Loss and score on the held-out examples, with the weights of all stages after so many steps."""

    steps: int
    samples: int
    loss: float
    score: float | None


@dataclass(frozen=True)
class PartitionRecord:
    """A run as it was measured."""

    schedule: Mapping[str, Any]
    cuts: tuple[int, ...]
    micro_batches: int
    seed: int
    first_step: int
    """Steps before it were run earlier, and come from a checkpoint."""
    stages: tuple[StageRecord, ...]
    losses: tuple[StepLoss, ...]
    held_out: tuple[HeldOut, ...]

    @property
    def step_s(self) -> float:
        """Return the mean seconds of a step after the first quarter of the steps; NaN where there are too few.

        A step ends where its last backward pass does: on the first stage.
        """
        ends_s = self.stages[0].ends_s[len(self.stages[0].ends_s) // _WARM :]
        return (ends_s[-1] - ends_s[0]) / (len(ends_s) - 1) if len(ends_s) > 1 else float("nan")

    def mean_s(self, stage: int, kind: str) -> float:
        """Return the mean seconds of one of ``KINDS`` in a step of a stage, after the first quarter of the steps."""
        found = self.stages[stage].seconds[kind]
        return float(np.mean(found[len(found) // _WARM :]))

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON holds."""
        return asdict(self)

    def save(self, path: Path) -> None:
        """Write it as JSON, atomically."""
        write_json(path, self.to_dict())


def record_from_dict(values: Any) -> PartitionRecord:
    """Return the record that ``to_dict`` wrote.

    Raises:
        DataError: something is missing or has another name.
    """
    try:
        stages = tuple(stage_from_dict(one) for one in values["stages"])
        losses = tuple(StepLoss(**one) for one in values["losses"])
        held_out = tuple(HeldOut(**one) for one in values["held_out"])
        given = {"stages": stages, "losses": losses, "held_out": held_out, "cuts": tuple(values["cuts"])}
        return PartitionRecord(**{**values, **given})
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"this is no record of a run of stages: {error!r}") from None


def stage_from_dict(values: Mapping[str, Any]) -> StageRecord:
    """Return the record of a stage from what JSON holds."""
    begin, end = values["layers"]
    seconds = {kind: tuple(own) for kind, own in values["seconds"].items()}
    return StageRecord(**{**values, "layers": (begin, end), "seconds": seconds, "ends_s": tuple(values["ends_s"])})


def load_record(path: Path) -> PartitionRecord:
    """Read what ``PartitionRecord.save`` wrote; ``DataError`` where it is something else."""
    return record_from_dict(read_json(path))
