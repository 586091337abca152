"""A Dask cluster of two worker processes, and a hand that kills one in the middle of a verb."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

distributed = pytest.importorskip("distributed")

from cdmpp.execute.cluster import DaskExecutor  # noqa: E402
from cdmpp.execute.work import Work  # noqa: E402

CHILD = (str(Path(__file__).with_name("child.py")),)
ECHO = Work(CHILD, limit_s=20, processes=2)


@dataclass
class Cluster:
    """It is used through its address, as any other."""

    dask: Any
    client: Any

    @property
    def address(self) -> str:
        return self.dask.scheduler_address.replace("tcp://", "dask://")

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
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=logging.CRITICAL
    ) as dask, distributed.Client(dask, set_as_default=False) as client:  # fmt: skip
        yield Cluster(dask, client)


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    running.client.wait_for_workers(2, timeout=300)
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
