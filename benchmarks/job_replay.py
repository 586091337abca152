"""Seconds and memory to replay a job of asynchronous workers, 1,000 commits each, that share one server's link."""

from __future__ import annotations

import sys
import time

from timing import finish, peak_memory_mb

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.policies.asynchronous import Asynchronous
from cdmpp.synchrony.replay import replay_job
from cdmpp.synchrony.worker import Server, Worker

COMMITS = 1000
"""Commits of each worker."""


def job(workers: int) -> Job:
    """Workers of seven speeds want twice what the server's link carries, so that nearly all of them share it."""
    link, n_bytes = AlphaBeta(1e-4, 1e-8), 1e6
    each = tuple(Worker(0.1 * (1 + i % 7 / 7), 32, 0.1, link) for i in range(workers))
    wanted = sum(n_bytes / worker.batch_s for worker in each)
    return Job(each, n_bytes, (Server(AlphaBeta(0.0, 2 / wanted), 1e13),))


def main() -> None:
    workers = int(sys.argv[2])
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    outcome = replay_job(job(workers), Asynchronous(), commits=workers * COMMITS)
    seconds = time.perf_counter() - begin_s
    finish(
        {
            "workers": workers,
            "commits": outcome.commits,
            "seconds": seconds,
            "cpu_s": time.process_time() - begin_cpu_s,
            "memory_mb": peak_memory_mb(),
            "limit": outcome.limit,
        }
    )


if __name__ == "__main__":
    main()
