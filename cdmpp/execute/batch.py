"""This runs inside a Dask worker: a batch of requests goes to a child process, whose replies go back.

A program that crashes or hangs ends the child and not the worker, as on one machine. Each thread of a worker keeps one
child. Dask unpickles calls of these functions; what they are given and return is JSON.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from cdmpp.errors import CdmppError
from cdmpp.execute.installation import Installation
from cdmpp.execute.work import Answers, Batch
from cdmpp.platform.workers import Reply, Worker

_own = threading.local()
_lock = threading.Lock()
_busy: dict[Worker, str] = {}
"""Child -> the run that it works for."""
_given_up: set[str] = set()


def installation() -> str:
    """Describe this worker's ``Installation``, as JSON."""
    return Installation.here().to_json()


def answer(message: bytes) -> bytes:
    """Answer a ``Batch`` with ``Answers``."""
    batch = Batch.from_bytes(message)
    if batch.installation != Installation.here().digest:
        return Answers((), refused="another version").to_bytes()
    worker = _worker(batch)
    with _lock:
        _busy[worker] = batch.run
    try:
        worker.start()
        begun_s = time.perf_counter()
        replies = _replies(worker, batch)
        return Answers(tuple(replies), time.perf_counter() - begun_s).to_bytes()
    except CdmppError as error:
        return Answers((), refused=str(error)).to_bytes()
    finally:
        with _lock:
            _busy.pop(worker, None)


def give_up(run: str) -> None:
    """End the children that work for ``run``, and begin nothing more of it."""
    with _lock:
        _given_up.add(run)
        for worker in [one for one, its in _busy.items() if its == run]:
            worker.kill()


def _replies(worker: Worker, batch: Batch) -> Sequence[Reply]:
    replies = []
    for request in batch.requests:
        if batch.run in _given_up:
            break
        replies.append(worker.request(request, batch.limit_s))
    return replies


def _worker(batch: Batch) -> Worker:
    """Return the child of this thread; one of another program ends."""
    worker: Worker | None = getattr(_own, "worker", None)
    ready = batch.ready or {"op": "ready"}
    if worker is None or (worker.command, worker.ready) != (batch.command, ready):
        if worker is not None:
            worker.stop()
        worker = _own.worker = Worker(batch.command, ready=batch.ready, group=True)
    return worker
