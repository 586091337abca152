"""What a worker or a server of a real job may use of this machine."""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from cdmpp.errors import UsageError
from cdmpp.platform.limits import Limits, check_all, check_fields, numbers

_MBIT = numbers(0.1, 1e6, "Mbit/s")
_CORE = Limits(0, 2**16)


@dataclass(frozen=True)
class WorkerPlace:
    """One worker: its share of a core, its link, its core."""

    LIMITS: ClassVar[Mapping[str, Limits]] = {"cpu_share": numbers(0.01, 1.0), "mbit": _MBIT, "core": _CORE}
    cpu_share: float | None = None
    """Share of one core that the kernel lets it run for; None: no limit."""
    mbit: float | None = None
    """Mbit/s of its link, each way; None: no limit."""
    core: int | None = None
    """Core it is pinned to; None: any."""

    def __post_init__(self) -> None:
        check_fields(self, "worker.")


@dataclass(frozen=True)
class ServerPlace:
    """One parameter server: its link, its core."""

    LIMITS: ClassVar[Mapping[str, Limits]] = {"mbit": _MBIT, "core": _CORE}
    mbit: float | None = None
    """Mbit/s of its link, each way; None: no limit."""
    core: int | None = None
    """Core it is pinned to; None: any."""

    def __post_init__(self) -> None:
        check_fields(self, "server.")


_MOST = {"workers": Limits(1, 200, "processes"), "servers": Limits(1, 64, "processes")}
"""A server is given a pipe for each worker as it starts, and Python passes about 250 to a process."""


def check_places(workers: Sequence[WorkerPlace], servers: Sequence[ServerPlace]) -> None:
    """Raise ``UsageError`` where a job cannot have these processes: other types, none, too many for pipes to all."""
    for what, places, kind in (("workers", workers, WorkerPlace), ("servers", servers, ServerPlace)):
        check_all(what, places, kind)
        if not places:
            raise UsageError(f"{what} is empty: give a place for each of one or more")
        _MOST[what].fitting(f"the number of {what}", len(places))
    many, few = len(workers), len(servers)
    needed = (many + 2) * (few + 2) + 2 * many + 64
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and needed > most:
        raise UsageError(
            f"{many} workers and {few} servers need about {needed:,} open files, and this process may have {most:,}: "
            "give fewer, or raise `ulimit -n`"
        )
