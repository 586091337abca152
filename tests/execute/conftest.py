"""A Dask cluster of two worker processes, and a hand that kills one in the middle of a verb.

``LocalCluster`` closes a worker for good whose name is not there 15 s after a worker of that name went: a busy machine
needs longer to start a killed one again, or it was killed twice. So tests wait longer; and a nanny that could not start
its worker does not try again, so a cluster that is not whole is replaced.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

distributed = pytest.importorskip("distributed")
import dask  # noqa: E402

from cdmpp.execute.cluster import DaskExecutor  # noqa: E402
from cdmpp.execute.work import Work  # noqa: E402

CHILD = (str(Path(__file__).with_name("child.py")),)
ECHO = Work(CHILD, limit_s=20, processes=2)


WORKERS = 2


class Cluster:
    """It is used through its address, as any other."""

    def __init__(self) -> None:
        self.open()

    def open(self) -> None:
        more = {"dashboard_address": ":0", "silence_logs": False}  # else handlers of this process are silent too
        self.dask = distributed.LocalCluster(n_workers=WORKERS, threads_per_worker=1, processes=True, **more)
        self.client = distributed.Client(self.dask, set_as_default=False)

    def close(self) -> None:
        self.client.close()
        self.dask.close()

    @property
    def address(self) -> str:
        return self.dask.scheduler_address.replace("tcp://", "dask://")

    def make_whole(self, limit_s: float = 120.0) -> None:
        """Wait until all workers are there; a cluster that lost some for good makes room for another one."""
        nannies = [one for one in self.dask.workers.values() if one.status == distributed.Status.running]
        try:
            self.client.wait_for_workers(WORKERS, timeout=limit_s if len(nannies) == WORKERS else 0.1)
        except TimeoutError:
            self.close()
            self.open()

    def kill_one(self, busy: bool = True) -> bool:
        """Kill a worker process that has something to do; False: none has."""
        work = self.client.processing()
        chosen = [worker for worker, keys in work.items() if keys or not busy][:1]
        for pid in self.client.run(os.getpid, workers=chosen).values() if chosen else ():
            os.kill(pid, signal.SIGKILL)
        return bool(chosen)


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}):
        cluster = Cluster()
        yield cluster
        cluster.close()


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    running.make_whole()
    return running


@pytest.fixture
def killing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster of which one busy worker is killed after the first reply; a test without a kill fails."""
    replies, killed = DaskExecutor.replies, []

    def watched(self: DaskExecutor, *work: Any) -> Iterator[Any]:
        for reply in replies(self, *work):
            if not killed and cluster.kill_one():
                killed.append(reply)
            yield reply

    monkeypatch.setattr(DaskExecutor, "replies", watched)
    yield cluster
    assert killed, "no worker was killed: the work was over too soon"
