"""Limit: what holds back the samples a second of a job."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.synchrony.job import Job
from cdmpp.synchrony.outcome import ServerShare, WorkerShare

LIMITS = ("server link", "server's adding", "slowest worker", "worker link", "compute")
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
    links = [job.server_link(number) for number in range(len(servers))]
    carried_s = [
        max(one.sent_bytes, one.received_bytes) * link.beta_s for one, link in zip(servers, links, strict=True)
    ]
    if max(carried_s) >= _BUSY * seconds:
        return "server link"
    if max(one.busy_s for one in servers) >= _BUSY * seconds:
        return "server's adding"
    first = min(workers, key=lambda one: one.waiting_s)  # the others wait for it
    if first.communication_s <= seconds - first.waiting_s - first.communication_s:
        waiting_s = sum(one.waiting_s for one in workers) / len(workers)
        return "slowest worker" if waiting_s >= _WAITING * seconds else "compute"
    server_s = max(job.bytes_of(number) * link.beta_s for number, link in enumerate(links))
    return "server link" if server_s > max(one.link.beta_s for one in job.workers) * job.bytes else "worker link"
