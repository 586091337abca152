"""Job: workers that train on their own and servers that keep the parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import UsageError
from cdmpp.platform.limits import check_all, check_fields, numbers
from cdmpp.synchrony.worker import Server, Worker, check_link


@dataclass(frozen=True)
class Job:
    """A commit sends the update of all parameters to the servers, each its part; a pull brings all parameters back."""

    LIMITS: ClassVar = {"bytes": numbers(0, 1e15, "bytes", above=True)}

    workers: tuple[Worker, ...]
    bytes: float
    """Bytes of all parameters, which a commit and a pull move."""
    servers: tuple[Server, ...] = (Server(),)
    overlap: bool = False
    """A worker trains on while it pushes and pulls, and uses what it pulled from its next batch on. It has at most one
    commit under way."""
    medium: AlphaBeta | None = None
    """A medium that all transfers share in both directions next to the links, such as a radio channel."""

    def __post_init__(self) -> None:
        check_fields(self, "job.")
        if self.medium is not None:
            check_link(self.medium, "job.medium")
        check_all("job.workers", self.workers, Worker)
        check_all("job.servers", self.servers, Server)
        for what in ("workers", "servers"):
            if not getattr(self, what):
                raise UsageError(f"job.{what} is empty: give one or more")
        for number, server in enumerate(self.servers):
            if server.on is not None and server.on >= len(self.workers):
                raise UsageError(
                    f"server {number} is on worker {server.on}, and there are {len(self.workers)} workers, numbered "
                    "from 0: give one of them, or a machine of its own"
                )

    def bytes_of(self, server: int) -> float:
        """Compute the bytes of a server's part of the parameters."""
        return self.bytes * self.servers[server].share / math.fsum(one.share for one in self.servers)

    def server_link(self, server: int) -> AlphaBeta:
        """Return the link of a server: its own, or that of the worker on whose machine it is."""
        one = self.servers[server]
        return one.link if one.on is None else self.workers[one.on].link

    def latency_s(self, worker: int, server: int) -> float:
        """Compute the seconds until the first byte of a transfer arrives: those of all links that it crosses."""
        if self.servers[server].on == worker:
            return 0.0
        medium_s = self.medium.alpha_s if self.medium is not None else 0.0
        return self.workers[worker].link.alpha_s + self.server_link(server).alpha_s + medium_s

    def way(self, worker: int, server: int, is_pull: bool) -> tuple[str, ...]:
        """List the links that a push crosses, or a pull; without those that limit nothing."""
        on, (out, into) = self.servers[server].on, ("in", "out") if is_pull else ("out", "in")
        if on == worker:
            return ()
        links = f"worker {worker} {out}", f"server {server} {into}" if on is None else f"worker {on} {into}"
        return tuple(link for link in (*links, "medium") if link in self.rates)

    @cached_property
    def rates(self) -> dict[str, float]:
        """Each link carries so many bytes a second; those that limit nothing are left out."""
        links = {f"worker {i}": one.link for i, one in enumerate(self.workers)}
        links |= {f"server {i}": one.link for i, one in enumerate(self.servers) if one.on is None}
        rates = {f"{name} {way}": link.beta_s for name, link in links.items() for way in ("out", "in")}
        if self.medium is not None:
            rates["medium"] = self.medium.beta_s
        return {name: 1 / beta_s for name, beta_s in rates.items() if beta_s}

    def on_workers(self, servers: int) -> Job:
        """Return the job with so many servers, each on the machine of a worker, with equal parts of the parameters.

        ``UsageError`` where there are more servers than workers.
        """
        if not 1 <= servers <= len(self.workers):
            raise UsageError(
                f"{servers} servers on the machines of {len(self.workers)} workers: expected from 1 to "
                f"{len(self.workers)}, one on each; for more give servers machines of their own"
            )
        kind = self.servers[0]
        return replace(self, servers=tuple(replace(kind, on=number, share=1.0) for number in range(servers)))
