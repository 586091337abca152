"""Worker and Server: the machines of a job, and the links that join them to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import UsageError
from cdmpp.platform.limits import Limits, check_fields, numbers

NO_LIMIT = AlphaBeta(0.0, 0.0)
"""A link on which nothing takes time."""


@dataclass(frozen=True)
class Worker:
    """A worker trains batches of its own data."""

    LIMITS: ClassVar = {
        "batch_s": numbers(0, 1e9, "seconds", above=True),
        "samples": Limits(1, 2**31, "samples"),
        "spread": numbers(0, 10),
        "start_s": numbers(0, 1e9, "seconds"),
        "rested_s": numbers(0, 1e9, "seconds"),
    }

    batch_s: float
    """Mean seconds of one batch: forward pass, backward pass and the step of its own optimizer."""
    samples: int
    """Samples of one batch."""
    spread: float = 0.0
    """Standard deviation of the seconds of a batch, as a part of their mean."""
    link: AlphaBeta = NO_LIMIT
    """It sends over this link, and receives as fast at the same time. No seconds a byte: the link is no limit."""
    interval_s: tuple[float, float] | None = None
    """Interval of ``batch_s``, as a prediction gives it; None: it is known."""
    start_s: float = 0.0
    """It begins its first batch so late. Equal workers without a spread that begin together commit together always."""
    rested_s: float = 0.0
    """Its first batch after it stood still for an exchange is so much shorter. Under a CPU quota it is the period less
    the quota: the kernel gives a process that was idle the quota of a period whole, and its batch ends on the last of
    them in place of the end of a period."""

    def __post_init__(self) -> None:
        check_fields(self, "worker.")
        check_link(self.link, "worker.link")
        if self.interval_s is not None and not 0 < self.interval_s[0] <= self.batch_s <= self.interval_s[1] < math.inf:
            raise UsageError(
                f"worker.interval_s is {self.interval_s}: expected two numbers above 0 that enclose "
                f"worker.batch_s, {self.batch_s}"
            )


@dataclass(frozen=True)
class Server:
    """A server keeps a part of the parameters."""

    LIMITS: ClassVar = {
        "add_bytes_per_s": numbers(0, math.inf, "bytes a second", above=True),
        "share": numbers(0, 1e9, above=True),
        "on": Limits(0, 2**31, "the number of a worker"),
    }

    link: AlphaBeta = NO_LIMIT
    """As that of a worker."""
    add_bytes_per_s: float = math.inf
    """Bytes of updates that it adds to its parameters in a second, one commit after another."""
    share: float = 1.0
    """Its part of the parameters, in proportion to the shares of the others."""
    on: int | None = None
    """The worker on whose machine it runs and whose link it uses, in place of its own. They exchange without a link."""

    def __post_init__(self) -> None:
        check_fields(self, "server.")
        check_link(self.link, "server.link")


def check_link(link: AlphaBeta, name: str) -> None:
    """Raise ``UsageError`` where a link carries nothing, or takes less than no time."""
    for field in ("alpha_s", "beta_s"):
        value = getattr(link, field)
        if not 0 <= value < math.inf:
            raise UsageError(
                f"{name}.{field} is {value}: expected seconds from 0 up, and finite; a link without bandwidth carries "
                "nothing"
            )
