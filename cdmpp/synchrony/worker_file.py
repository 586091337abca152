"""WorkerSheet: a worker of a job as a YAML file describes it.

    device: epyc-genoa     # what it computes on, as `cdmpp devices` lists it; or in its place:
    batch_s: 0.25          # measured seconds of one batch
    batch: 32              # samples of one batch
    speed: 0.5             # part of the device's speed that it has, such as its share of the processor; 1 if left out
    spread: 0.05           # standard deviation of the seconds of a batch, as a part of them; 0 if left out
    link: ethernet-1g      # as of --link, or what it adds to a message: {latency_s: 1e-3, bytes_per_s: 1.2e7}
    memory_gb: 8           # GB (1e9 bytes) that it may hold, for `cdmpp plan`; that of the device if left out

Only one of ``device`` and ``batch_s`` is given; a link that is left out is that of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from cdmpp.collectives import interconnect
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.machine_link import machine_link
from cdmpp.errors import CdmppError, UsageError
from cdmpp.model.config import check_keys, config_from_dict
from cdmpp.platform.content import read_yaml
from cdmpp.platform.limits import SIZES, check_fields, fitting, numbers
from cdmpp.synchrony.worker import Worker

_LINK = {"latency_s": numbers(0, 1e3, "s"), "bytes_per_s": numbers(0, 1e15, "bytes a second", above=True)}


@dataclass(frozen=True)
class WorkerSheet:
    """A worker before anybody knows how long its batches take."""

    LIMITS: ClassVar = {
        "batch": SIZES,
        "batch_s": numbers(0, 1e9, "seconds", above=True),
        "speed": numbers(0, 1e3, above=True),
        "spread": numbers(0, 10),
        "memory_gb": numbers(0, 10**6, "GB", above=True),
    }

    batch: int
    """Samples of one batch."""
    device: str | None = None
    """The name of a device; None: ``batch_s`` is known."""
    batch_s: float | None = None
    """Measured seconds of one batch."""
    speed: float = 1.0
    """The part of the speed of the device, or of the measured one, that it has."""
    spread: float = 0.0
    """Standard deviation of the seconds of a batch, as a part of their mean."""
    link: AlphaBeta | None = None
    """None: that of the job."""
    memory_gb: float | None = None
    """GB (1e9 bytes) that it may hold; None: as its device's sheet says."""

    def __post_init__(self) -> None:
        check_fields(self, "worker.")
        if (self.device is None) == (self.batch_s is None):
            raise UsageError(
                "a worker has a device, whose time is predicted, or batch_s, which was measured: give one of the two"
            )

    def worker(self, batch_s: float, link: AlphaBeta, interval_s: tuple[float, float] | None = None) -> Worker:
        """Return the worker.

        Args:
            batch_s: seconds of a batch at full speed.
            link: of the job.
            interval_s: of ``batch_s``; None: it was measured.
        """
        interval_s = None if interval_s is None else (interval_s[0] / self.speed, interval_s[1] / self.speed)
        return Worker(batch_s / self.speed, self.batch, self.spread, self.link or link, interval_s)


def read_worker(file: Path | str) -> WorkerSheet:
    """Read a worker's file.

    Raises:
        CdmppError: a file that cannot be read, or a value that cannot be, with the name of the file.
    """
    file = Path(file)
    content = read_yaml(file)
    try:
        values = dict(fitting("worker", content, Mapping))
        check_keys(values, [one.name for one in fields(WorkerSheet)], "worker.")
        if values.get("link") is not None:
            values["link"] = _link(values["link"])
        return config_from_dict(WorkerSheet, values, "worker")
    except CdmppError as error:
        raise UsageError(f"{file}: {error}") from error


def link_file(file: Path) -> Path | None:
    """Return the file of timed messages that a worker's file names as its link; None: it names none.

    Raises:
        CdmppError: a file that cannot be read.
    """
    content = read_yaml(file)
    link = content.get("link") if isinstance(content, Mapping) else None
    return Path(link) if isinstance(link, str) and link.endswith(".csv") else None


def _link(value: Any) -> AlphaBeta:
    if isinstance(value, str):
        if interconnect.medium(value) is not None:
            raise UsageError(f"worker.link {value} is shared by all: give it to the job, as in --link {value}")
        return machine_link(value).end
    found = dict(fitting("worker.link", value, Mapping))
    check_keys(found, list(_LINK), "worker.link.")
    if missing := [name for name in _LINK if name not in found]:
        raise UsageError(f"worker.link.{missing[0]} is missing: give latency_s and bytes_per_s, or the name of a link")
    alpha_s, bytes_per_s = (limits.fitting(f"worker.link.{name}", found[name]) for name, limits in _LINK.items())
    return AlphaBeta(alpha_s, 1 / bytes_per_s)
