"""This runs inside a Dask worker: a batch of requests goes to a child process, whose replies go back.

A program that crashes or hangs ends the child and not the worker, as on one machine. Each thread of a worker keeps one
child. Dask unpickles calls of these functions; what they are given and return is JSON.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cdmpp.errors import CdmppError
from cdmpp.execute.installation import Installation
from cdmpp.execute.work import Answers, Batch
from cdmpp.platform.workers import Reply, Worker

_own = threading.local()
_lock = threading.Lock()
_busy: dict[Worker, str] = {}
"""Child -> the run that it works for."""
_given_up: set[str] = set()
_LOOK_S = 1.0


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
        with _while_wanted(worker) as is_unwanted:
            worker.start()
            begun_s = time.perf_counter()
            replies = _replies(worker, batch, is_unwanted)
        return Answers(tuple(replies), time.perf_counter() - begun_s).to_bytes()
    except CdmppError as error:
        return Answers((), refused=f"{platform.node()} says: {error}").to_bytes()
    finally:
        with _lock:
            _busy.pop(worker, None)


def give_up(run: str) -> None:
    """End the children that work for ``run``, and begin nothing more of it."""
    with _lock:
        _given_up.add(run)
        for worker in [one for one, its in _busy.items() if its == run]:
            worker.kill()


@contextmanager
def _while_wanted(worker: Worker) -> Iterator[threading.Event]:
    """End the child once the scheduler wants this task no more, as where a client was killed and gave nothing up.

    The event is set then. A request may take hours, and others wait for the thread.
    """
    from distributed import get_worker

    is_unwanted, is_done, here = threading.Event(), threading.Event(), get_worker()
    key = here.get_current_task()

    def watch() -> None:
        while not is_done.wait(_LOOK_S):
            task = here.state.tasks.get(key)
            if task is None or task.state == "cancelled":
                is_unwanted.set()
                worker.kill()
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield is_unwanted
    finally:
        is_done.set()


def _replies(worker: Worker, batch: Batch, is_unwanted: threading.Event) -> Sequence[Reply]:
    replies = []
    for request in batch.requests:
        if batch.run in _given_up or is_unwanted.is_set():
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
