"""Limit: what holds back the samples a second of a job."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cdmpp.synchrony.job import Job
from cdmpp.synchrony.outcome import JobOutcome, ServerShare, WorkerShare

LIMITS = ("medium", "server link", "server's adding", "slowest worker", "worker link", "compute")
"""Names of the limits."""
_BUSY = 0.9
"""A resource that is busy for this part of the time holds the job back."""
_WAITING = 0.1
"""Workers that wait for this part of their time, on average, are held back by the slowest."""


def limit_of(job: Job, seconds: float, workers: Sequence[WorkerShare], servers: Sequence[ServerShare]) -> str:
    """Return the name of the limit.

    It is a server that is busy nearly all the time, or else what the worker that waits the least does most of its time.

    Args:
        job: what ran.
        seconds: for so long.
        workers: what each of its workers did.
        servers: what each of its servers did.
    """
    server_s = max(_link_s(job, number, workers, servers) for number in range(len(servers)))
    medium_s = _medium_s(job, servers)
    if medium_s >= _BUSY * seconds:
        return "medium"
    if server_s >= _BUSY * seconds:
        return "server link"
    if max(one.busy_s for one in servers) >= _BUSY * seconds:
        return "server's adding"
    first = min(workers, key=lambda one: one.waiting_s)  # the others wait for it
    if first.communication_s <= seconds - first.waiting_s - first.communication_s:
        waiting_s = sum(one.waiting_s for one in workers) / len(workers)
        return "slowest worker" if waiting_s >= _WAITING * seconds else "compute"
    busy_s = {
        "worker link": max(
            max(one.sent_bytes, one.received_bytes) * worker.link.beta_s
            for one, worker in zip(workers, job.workers, strict=True)
        ),
        "server link": server_s,
        "medium": medium_s,
    }
    return max(busy_s, key=lambda name: busy_s[name])


def link_busy_s(job: Job, outcome: JobOutcome, server: int) -> float:
    """Return the seconds in which the busiest link that a server's bytes cross on its side carries bytes.

    It is the busier way of its link, with what a worker on the same machine moves, or the medium.
    """
    return max(_link_s(job, server, outcome.workers, outcome.servers), _medium_s(job, outcome.servers))


def _medium_s(job: Job, servers: Sequence[ServerShare]) -> float:
    """Seconds that the medium takes for all bytes; 0 without one."""
    if job.medium is None:
        return 0.0
    return job.medium.beta_s * math.fsum(one.sent_bytes + one.received_bytes for one in servers)


def _link_s(job: Job, server: int, workers: Sequence[WorkerShare], servers: Sequence[ServerShare]) -> float:
    """Seconds that the busier way of a server's link would take for its bytes, and its worker's on the same machine."""
    own, on = servers[server], job.servers[server].on
    shares: list[WorkerShare | ServerShare] = [own] if on is None else [own, workers[on]]
    most = max(math.fsum(one.sent_bytes for one in shares), math.fsum(one.received_bytes for one in shares))
    return most * job.server_link(server).beta_s
