"""When the workers of a job begin: the one rule of all replays that stand for a job of the user."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.job import Job


def begun(job: Job, synchrony: Synchrony, seed: int) -> Job:
    """Return the job with workers that begin as real ones do: at random moments, where nobody waits for all others.

    Transfers share a link evenly, so two equal workers that push at the same moment go on to do so until their batches
    have come apart by chance, which may take as long as the job. Processes begin neither together nor evenly apart. So
    each worker begins at a random moment within the time of its first batch, push and pull; the mean over seeds is that
    of a job that has run for long. Rounds begin anew after each barrier, so there all begin together. A worker whose
    ``start_s`` is given keeps it.

    Args:
        job: workers, servers and links.
        synchrony: of the job.
        seed: of the moments.
    """
    if synchrony.decisions(len(job.workers)).has_rounds or any(one.start_s for one in job.workers):
        return job
    parts = np.random.default_rng(seed).random(len(job.workers))
    return replace(
        job,
        workers=tuple(
            replace(one, start_s=float(part) * cycle_s(job, number))
            for number, (one, part) in enumerate(zip(job.workers, parts, strict=True))
        ),
    )


def cycle_s(job: Job, worker: int) -> float:
    """Compute the seconds of a batch of a worker, its push, adding and pull, while nobody else exchanges."""
    carried: dict[str, float] = {}
    latency_s = add_s = 0.0
    for number, server in enumerate(job.servers):
        for link in job.way(worker, number, is_pull=False):
            carried[link] = carried.get(link, 0.0) + job.bytes_of(number)
        latency_s = max(latency_s, job.latency_s(worker, number))
        add_s = max(add_s, job.bytes_of(number) / server.add_bytes_per_s)
    way_s = latency_s + max((size / job.rates[link] for link, size in carried.items()), default=0.0)
    return job.workers[worker].batch_s + 2 * way_s + add_s
