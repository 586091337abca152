"""RunRecord: what a real job measured, to and from JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError
from cdmpp.platform.files import read_json, write_json
from cdmpp.synchrony.outcome import ServerShare, WorkerShare
from cdmpp.synchrony.processes.place import ServerPlace, WorkerPlace


@dataclass(frozen=True)
class Commit:
    """One update that reached the servers."""

    at_s: float
    """Seconds from the start of the job until the servers had added it."""
    batches: int
    """Batches of its worker that it holds."""
    staleness: int
    """Commits of others that were added since its worker had begun to pull."""
    weight: float
    """Factor with which it was added; 0: it came too late and was dropped."""


@dataclass(frozen=True)
class WorkerRecord:
    """What one worker did."""

    place: WorkerPlace
    share: WorkerShare
    batch_s: float
    """Mean seconds from the start of a batch to its end; 0 without batches."""
    spread: float
    """Standard deviation of the seconds of a batch, as a part of their mean."""
    commits: tuple[Commit, ...]


@dataclass(frozen=True)
class ServerRecord:
    """What one server did."""

    place: ServerPlace
    share: ServerShare
    parameter_bytes: int
    """Bytes of its part of the parameters, of each push and of each pull."""


@dataclass(frozen=True)
class LossPoint:
    """The loss at one moment."""

    at_s: float
    samples: int
    """Samples of all workers so far."""
    batch_loss: float | None
    """Mean loss of the batches since the point before; None: there was none."""
    held_out_loss: float | None
    """Loss of the servers' parameters on held-out samples; None: the training has no ``loss``."""


@dataclass(frozen=True)
class RunRecord:
    """One job as it was measured."""

    synchrony: Mapping[str, Any]
    seed: int
    seconds: float
    parameter_bytes: int
    workers: tuple[WorkerRecord, ...]
    servers: tuple[ServerRecord, ...]
    losses: tuple[LossPoint, ...]
    warnings: tuple[str, ...] = ()
    """What is missing, and why."""

    @property
    def samples_per_s(self) -> float:
        """Samples a second of all workers together."""
        return sum(one.share.samples for one in self.workers) / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON holds."""
        return asdict(self)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        write_json(path, self.to_dict())


def record_from_dict(values: Any) -> RunRecord:
    """Return the record that ``to_dict`` wrote.

    Raises:
        DataError: something is missing or has another name.
    """
    try:
        workers = tuple(_worker(one) for one in values["workers"])
        servers = tuple(
            ServerRecord(ServerPlace(**one["place"]), ServerShare(**one["share"]), one["parameter_bytes"])
            for one in values["servers"]
        )
        losses = tuple(LossPoint(**one) for one in values["losses"])
        warnings = tuple(values.get("warnings", ()))
        return RunRecord(**{**values, "workers": workers, "servers": servers, "losses": losses, "warnings": warnings})
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"this is no record of a run: {error!r}") from None


def _worker(values: Mapping[str, Any]) -> WorkerRecord:
    staleness = {int(commits): often for commits, often in values["share"]["staleness"].items()}
    return WorkerRecord(
        WorkerPlace(**values["place"]),
        WorkerShare(**{**values["share"], "staleness": staleness}),
        values["batch_s"],
        values["spread"],
        tuple(Commit(**one) for one in values["commits"]),
    )


def load_record(path: Path) -> RunRecord:
    """Read what ``RunRecord.save`` wrote; ``DataError`` where it is something else."""
    return record_from_dict(read_json(path))
