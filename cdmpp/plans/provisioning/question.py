"""ProvisioningQuestion: which configuration of parameter servers trains fastest on a budget of machines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import UsageError
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.provisioning.configuration import MACHINES, Configuration
from cdmpp.plans.provisioning.counts import Counts
from cdmpp.plans.provisioning.replica import Replica
from cdmpp.plans.sources.source import RankWork, StepSource
from cdmpp.platform.limits import SIZES, Limits, check_fields, numbers
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.policies.asynchronous import Asynchronous
from cdmpp.synchrony.policies.stale_synchronous import StaleSynchronous
from cdmpp.synchrony.policies.synchronous import Synchronous

_ANY = Counts(1, int(MACHINES.most))
MOST = 1_000_000
"""Configurations that are enumerated at most."""


@dataclass(frozen=True)
class ProvisioningQuestion:
    """The budget, what is known of the job, and between which numbers to choose."""

    LIMITS: ClassVar = {
        "machines": MACHINES,
        "batch": SIZES,
        "commit_every": Limits(1, 2**31, "batches"),
        "slowdown": numbers(1, 1e6),
        "add_bytes_per_s": numbers(0, math.inf, "bytes a second", above=True),
        "spread": numbers(0, 10),
        "memory_limit_bytes": numbers(0, 1e18, "bytes", above=True),
    }

    source: StepSource
    link: AlphaBeta
    """Each machine has it, in each direction."""
    machines: int
    """The budget: workers and servers together."""
    batch: int
    """Examples of one batch of one thread."""
    workers: Counts = _ANY
    """Machines that train, over all replicas."""
    servers: Counts = _ANY
    """Machines that are parameter servers."""
    machines_per_replica: Counts = Counts(1, 1)
    threads: Counts = Counts(1, 1)
    synchrony: Synchrony = field(default_factory=Asynchronous)
    """``async``, ``ssp`` or ``bsp``."""
    commit_every: int = 1
    """Batches of a replica between two commits."""
    overlap: bool = True
    """A replica trains on while it pushes and pulls. Under ``bsp`` it does not, since it waits for all updates."""
    slowdown: tuple[float, ...] = ()
    """Factor of the seconds of each thread where 1, 2, ... run in a machine; empty: 1 for all."""
    add_bytes_per_s: float = math.inf
    """Bytes of updates that a server adds in a second."""
    spread: float = 0.0
    """Standard deviation of the seconds of a batch, as a part of their mean."""
    memory_limit_bytes: float | None = None
    """Most bytes of a machine; None: no limit."""
    is_gpu: bool = False
    """True if the allocator of a GPU counts."""
    warnings: tuple[str, ...] = ()
    """These were assumed where the question said nothing, a sentence each."""

    def __post_init__(self) -> None:
        check_fields(self, "provisioning.")
        if not isinstance(self.synchrony, Synchronous | Asynchronous | StaleSynchronous):
            raise UsageError(
                f"synchrony {self.synchrony.name}: machines are bought for async, ssp or bsp; give one of these"
            )
        if isinstance(self.synchrony, Asynchronous) and self.synchrony.every > 1:
            raise UsageError(
                f"synchrony async:{self.synchrony.every}: say by commit_every how many batches are between two commits"
            )
        if self.is_gpu and self.threads.last > 1:
            raise UsageError(f"threads {self.threads}: a GPU trains one batch at a time; leave them out")
        if self.slowdown and len(self.slowdown) < self.threads.last:
            raise UsageError(
                f"slowdown has factors of {len(self.slowdown)} threads, and {self.threads.last} are asked for: give "
                "one each, or fewer threads"
            )
        if self.least_machines > self.machines:
            raise UsageError(
                f"{self.servers.first} servers next to {self.least_workers} machines that train need "
                f"{self.least_machines} machines, and the budget is {self.machines}: take fewer, or a larger budget"
            )
        if not self.possible:
            raise UsageError(
                f"{self.workers} machines that train make no whole replicas of {self.machines_per_replica} machines "
                f"within a budget of {self.machines}: change one of them"
            )
        if self.possible > MOST:
            raise UsageError(
                f"more than {MOST:,} configurations of {self.machines} machines: give narrower ranges of servers, "
                "workers, machines a replica or threads"
            )

    @property
    def has_rounds(self) -> bool:
        """True if every replica waits for all others."""
        return isinstance(self.synchrony, Synchronous)

    @property
    def overlaps(self) -> bool:
        """True if a replica trains on while it pushes and pulls."""
        return self.overlap and not self.has_rounds

    @property
    def least_workers(self) -> int:
        """Count the machines that train at least."""
        return max(self.workers.first, self.machines_per_replica.first)

    @property
    def least_machines(self) -> int:
        """Count the machines of the smallest configuration."""
        return self.least_workers + self.servers.first

    def configurations(self) -> Iterator[Configuration]:
        """Yield all configurations within the budget."""
        for servers, size, many in self._replicas_within():
            for replicas in many:
                for threads in self.threads.within(self.threads.last):
                    yield Configuration(replicas, size, threads, servers)

    @cached_property
    def possible(self) -> int:
        """The number of ``configurations``, counted no further than to more than ``MOST``."""
        count, threads = 0, len(self.threads.within(self.threads.last))
        for _, _, many in self._replicas_within():
            count += threads * len(many)
            if count > MOST:
                break
        return count

    def _replicas_within(self) -> Iterator[tuple[int, int, range]]:
        """Yield the numbers of servers and of machines of a replica, with the numbers of replicas they allow."""
        for servers in self.servers.within(self.machines - self.least_workers):
            left = self.machines - servers
            for size in self.machines_per_replica.within(left):
                yield servers, size, range(-(-self.workers.first // size), min(self.workers.last, left) // size + 1)

    def slowdown_of(self, threads: int) -> float:
        """Return the factor of the seconds of each of so many threads."""
        return self.slowdown[threads - 1] if self.slowdown else 1.0

    @cached_property
    def work(self) -> RankWork:
        """The step of one batch on one machine."""
        return self.source.work(self.batch, ParallelDegrees())

    @cached_property
    def _replicas(self) -> dict[int, Replica]:
        return {}

    def replica(self, machines: int) -> Replica:
        """Return a replica on so many machines; each is cut once."""
        if machines not in self._replicas:
            self._replicas[machines] = Replica(self.work, machines, self.link, self.is_gpu)
        return self._replicas[machines]
