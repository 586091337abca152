"""The cuts of a network as a YAML file.

schedule: delayed                # see cdmpp/plans/schedules
micro_batch: 8                   # examples
micro_batches: 4                 # of a step
recompute: false                 # forward passes run again before backward passes
stages:                          # first to last
- devices: [t4 #0]               # several share its micro-batches
  layers: [conv1, relu]          # by name, in order
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import yaml

from cdmpp.errors import CdmppError, UsageError
from cdmpp.model.config import check_keys
from cdmpp.partition.question import PartitionQuestion, ScheduledPartition
from cdmpp.plans.schedules import SCHEDULES
from cdmpp.platform.content import read_yaml
from cdmpp.platform.files import write_atomic
from cdmpp.platform.limits import check_fields, fitting


@dataclass(frozen=True)
class StagePlan:
    """One stage, by names."""

    devices: tuple[str, ...]
    layers: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in ("devices", "layers"):
            if not getattr(self, name):
                raise UsageError(f"{name} of a stage is empty: give one or more names")


@dataclass(frozen=True)
class PartitionPlan:
    """Where a network is cut, for which devices, and the schedule in which it trains."""

    LIMITS: ClassVar = {name: PartitionQuestion.LIMITS[name] for name in ("micro_batch", "micro_batches")}

    schedule: str
    micro_batch: int
    micro_batches: int
    recompute: bool
    stages: tuple[StagePlan, ...]

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.stages:
            raise UsageError("stages is empty: give one or more")
        fitting("schedule", SCHEDULES[self.schedule].name, str)

    @classmethod
    def of(cls, found: ScheduledPartition, micro_batch: int) -> PartitionPlan:
        """Return the cuts that a search found."""
        chain, names = found.chain, found.chain.names()
        layers = chain.problem.graph.layers
        stages = tuple(
            StagePlan(own, tuple(layers[place].name for place in part.layers))
            for own, part in zip(names, chain.parts, strict=True)
        )
        return cls(found.schedule.name, micro_batch, chain.problem.micro_batches, chain.problem.recompute, stages)

    def to_dict(self) -> dict[str, Any]:
        """Return what YAML holds."""
        stages = [{"devices": list(one.devices), "layers": list(one.layers)} for one in self.stages]
        return {one.name: getattr(self, one.name) for one in fields(self)} | {"stages": stages}


def save_partition(plan: PartitionPlan, path: Path) -> None:
    """Write a file that ``read_partition`` reads, whole or not at all."""
    text = yaml.safe_dump(plan.to_dict(), sort_keys=False, allow_unicode=True)
    write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_partition(path: Path) -> PartitionPlan:
    """Read the cuts of a file.

    Raises:
        CdmppError: it names the file and the key that is missing, unknown or cannot be.
    """
    try:
        return _plan(read_yaml(path))
    except CdmppError as error:
        raise CdmppError(f"{path}: {error}") from error


def _plan(content: Any) -> PartitionPlan:
    values = dict(fitting("plan", content, Mapping))
    names = [one.name for one in fields(PartitionPlan)]
    check_keys(values, names, "plan.")
    if missing := [name for name in names if name not in values]:
        raise UsageError(f"plan.{missing[0]} is missing: give {', '.join(names)}")
    stages = []
    for place, one in enumerate(fitting("stages", values["stages"], list[Any])):
        own = dict(fitting(f"stages.{place}", one, Mapping))
        check_keys(own, ["devices", "layers"], f"stages.{place}.")
        read = {
            name: tuple(fitting(f"stages.{place}.{name}", own.get(name), list[str])) for name in ("devices", "layers")
        }
        stages.append(StagePlan(**read))
    return PartitionPlan(**{**values, "stages": tuple(stages)})
