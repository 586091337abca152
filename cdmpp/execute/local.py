"""Processes of this machine; those that are left over stay for the next call."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from cdmpp.execute.work import Work
from cdmpp.platform.workers import Reply, Request, keep_worker, run_many, take_worker


class LocalExecutor:
    """It spreads requests over child processes."""

    is_here = True

    def replies(self, work: Work, requests: Iterable[Request], count: int) -> Generator[tuple[int, Reply]]:
        """Yield ``(index, reply)`` as they come, see ``Executor``."""
        pool = [take_worker(work.command, work.ready) for _ in range(max(1, min(work.processes, count)))]
        try:
            yield from run_many(pool, requests, work.limit_s)
        finally:
            for worker in pool:
                keep_worker(worker)

    def close(self) -> None:
        """Nothing is connected."""
