"""Configuration: how many replicas of which size train, and how many parameter servers keep their parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cdmpp.collectives.collective import MOST_RANKS
from cdmpp.platform.limits import Limits, check_fields

MACHINES = Limits(1, MOST_RANKS, "machines")
THREADS = Limits(1, 1024, "threads")


@dataclass(frozen=True, order=True)
class Configuration:
    """Workers are ``replicas x machines_per_replica`` machines; servers are machines of their own."""

    LIMITS: ClassVar = {
        "replicas": MACHINES, "machines_per_replica": MACHINES, "threads": THREADS, "servers": MACHINES,
    }  # fmt: skip

    replicas: int
    machines_per_replica: int
    """Machines over which the layers of one replica are divided."""
    threads: int
    """Threads of a machine, each with a batch of its own; they share one copy of the parameters."""
    servers: int

    def __post_init__(self) -> None:
        check_fields(self, "configuration.")

    @property
    def workers(self) -> int:
        """Count the machines that train."""
        return self.replicas * self.machines_per_replica

    @property
    def machines(self) -> int:
        """Count all machines."""
        return self.workers + self.servers

    @property
    def words(self) -> str:
        """Describe it for a reader."""
        return (
            f"{_many(self.replicas, 'replica')} x {_many(self.machines_per_replica, 'machine')} x "
            f"{_many(self.threads, 'thread')}, {_many(self.servers, 'server')}"
        )


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count > 1)}"
