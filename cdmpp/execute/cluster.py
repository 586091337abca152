"""A Dask cluster that works on requests in batches: results as they come, workers that may die, Ctrl-C.

Dask moves the batches, and starts those of a dead worker again on another one. A batch holds as many requests as take
half a second, so that what Dask does for each weighs little. A request during which workers die again and again is
answered as a crash, as one is whose process is killed here.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from cdmpp.errors import MissingToolError, RemoteError, some
from cdmpp.execute.batch import answer, give_up, installation
from cdmpp.execute.installation import Installation
from cdmpp.execute.work import Answers, Batch, Work
from cdmpp.platform.workers import Reply, Request

log = logging.getLogger(__name__)

CONNECT_S, WORKERS_S, ALONE_S = 10.0, 60.0, 300.0
"""Longest waits: for the scheduler, for its first worker, and for another one where all have gone."""
ANSWER_S = 120.0
"""Longest wait for an answer of the scheduler and its workers; a machine that stopped keeps its connections."""
_BATCH_S, _MOST, _MOST_BYTES = 0.5, 1000, 4_000_000
"""Seconds of a batch, most requests and bytes of it."""
_AHEAD = 2
"""Batches that each thread of a worker has, so that it need not wait for the next one."""
_RETRIES = 2
"""Times that a batch is tried again where its worker could not work on it."""
_LOOK_S = 2.0


class DaskExecutor:
    """It is the client of one scheduler."""

    is_here = False

    def __init__(self, client: Any, address: str) -> None:
        """``client``: a ``distributed.Client`` whose workers were looked at, see ``connected``."""
        self.address, self._client, self._here = address, client, Installation.here()
        self._workers, self._looked_s = dict[str, int](), -math.inf

    @staticmethod
    def connected(address: str) -> DaskExecutor:
        """Connect to ``dask://HOST:PORT``, and look whether all workers run what runs here.

        TLS is used where Dask's own configuration (``distributed.comm.tls``) names a certificate authority.

        Raises:
            MissingToolError: Dask is not installed.
            RemoteError: no scheduler or no worker answers, or a worker differs.
        """
        try:
            import dask
            import distributed
        except ImportError as error:
            raise MissingToolError(f"{address} needs Dask ({error}): pip install 'cdmpp[cluster]'") from error
        protocol = "tls" if dask.config.get("distributed.comm.tls.ca-file", None) else "tcp"
        place = f"{protocol}://{address.removeprefix('dask://')}"
        _quiet()
        try:
            connect = partial(distributed.Client, place, timeout=CONNECT_S, set_as_default=False, name="cdmpp")
            client = _within(2 * CONNECT_S, connect)
        except (OSError, TimeoutError, ValueError, RuntimeError) as error:
            raise RemoteError(
                f"no Dask scheduler answers at {place} within {CONNECT_S:g} s "
                f"({_line(error) or 'whoever listens there says nothing'}): start one with "
                "`dask scheduler`, and workers with `dask worker HOST:PORT`"
            ) from error
        made = DaskExecutor(client, address)
        try:
            made._check()
        except BaseException:
            made.close()
            raise
        return made

    def replies(self, work: Work, requests: Iterable[Request], count: int) -> Generator[tuple[int, Reply]]:
        """Yield ``(index, reply)`` as they come, see ``Executor``.

        Raises:
            RemoteError: the scheduler is gone, no worker is left, or one differs or cannot start a process.
        """
        run = _Run(self, work, enumerate(requests), count)
        try:
            yield from run.replies()
        finally:
            run.end()

    def close(self) -> None:
        """Leave the cluster; its workers stay."""
        with suppress(Exception):
            self._client.close(timeout=CONNECT_S)

    def submit(self, batch: Batch, key: str) -> Any:
        """Send a batch; returns Dask's future of its ``Answers``."""
        return self._client.submit(answer, batch.to_bytes(), key=key, retries=_RETRIES, pure=False)

    def batch(self, run: str, work: Work, requests: Iterable[Request]) -> Batch:
        """Make a batch that says what runs here."""
        return Batch(run, self._here.digest, work.command, work.ready, work.limit_s, tuple(requests))

    def threads(self) -> int:
        """Return how many threads the workers have; 0 where there is none now."""
        if time.monotonic() - self._looked_s > _LOOK_S:
            workers = self._there()
            self._tell(workers)
            self._workers, self._looked_s = workers, time.monotonic()
        return sum(self._workers.values())

    def _there(self) -> dict[str, int]:
        """Return the workers with their threads."""
        try:
            return dict(self._client.nthreads(callback_timeout=ANSWER_S))
        except Exception as error:  # noqa: BLE001 - whatever Dask's connection raises
            raise self.lost(error) from error

    def _tell(self, workers: Mapping[str, int]) -> None:
        """Log which workers there are, where it is news."""
        there = f"workers: {len(workers)}, threads: {sum(workers.values())}"
        if gone := sorted(self._workers.keys() - workers.keys()):
            left = f"its work goes to others ({there})" if workers else f"none is left: waiting {ALONE_S:g} s for one"
            log.warning("%s: lost worker %s; %s", self.address, some(gone, ", "), left)
        elif workers and not self._workers:
            log.info("%s: %s", self.address, there)

    def give_up(self, run: str, futures: Iterable[Any]) -> None:
        """Cancel what is left of a run, and end the processes that work for it."""
        with suppress(Exception):
            self._client.cancel(list(futures), force=True)
            self._client.run(give_up, run, on_error="ignore", callback_timeout=CONNECT_S)

    def lost(self, error: object) -> RemoteError:
        """Say that the scheduler does not answer any more."""
        return RemoteError(
            f"the Dask scheduler {self.address} is gone ({_line(error)}). What was done is kept: start it again, "
            "then give the same command"
        )

    def check(self) -> None:
        """Raise ``RemoteError`` naming workers that differ from what runs here."""
        try:
            told: Mapping[str, Any] = self._client.run(installation, on_error="return", callback_timeout=ANSWER_S)
        except TimeoutError as error:
            raise RemoteError(
                f"not all workers of {self.address} answer within {ANSWER_S:g} s: end those that hang, or start the "
                "scheduler and its workers again"
            ) from error
        except OSError as error:
            raise self.lost(error) from error
        faults = [f"{worker}: {fault}" for worker, given in told.items() for fault in self._faults(given)]
        if faults:
            raise RemoteError(
                f"workers of {self.address} would not give the same answers: {some(faults)}. Install the same versions "
                "on all machines, then start the workers again"
            )

    def _check(self) -> None:
        if not self._there():
            log.warning("%s has no worker yet: waiting %g s for one", self.address, WORKERS_S)
        try:
            self._client.wait_for_workers(1, timeout=WORKERS_S)
        except TimeoutError as error:
            raise RemoteError(
                f"the Dask scheduler {self.address} has no worker after {WORKERS_S:g} s: start some with "
                f"`dask worker {self.address.removeprefix('dask://')}`"
            ) from error
        self.check()
        self.threads()

    def _faults(self, given: Any) -> tuple[str, ...]:
        if isinstance(given, str):
            return self._here.differences(Installation.from_json(given))
        return (f"cdmpp cannot be asked there ({type(given).__name__}: {_line(given)})",)


def _within(limit_s: float, connect: Callable[[], Any]) -> Any:
    """Return what ``connect`` does: Dask bounds its wait for a connection, but not that for the first words on it."""
    found = Future[Any]()

    def connected() -> None:
        try:
            found.set_result(connect())
        except BaseException as error:  # noqa: BLE001 - raised again by who waits
            found.set_exception(error)

    Thread(target=connected, daemon=True).start()
    return found.result(limit_s)


class _Run:
    """This is one call of ``replies``."""

    def __init__(self, executor: DaskExecutor, work: Work, waiting: Iterator[tuple[int, Request]], count: int) -> None:
        self.executor, self.work, self.left = executor, work, count
        self.name = uuid.uuid4().hex
        self._waiting = waiting
        self._sent: dict[Any, list[tuple[int, Request]]] = {}
        self._done: SimpleQueue[Any] = SimpleQueue()
        self._numbers = iter(range(2**62))
        self._each_s: float | None = None
        self._heard_s = time.monotonic()

    def replies(self) -> Generator[tuple[int, Reply]]:
        """Keep the workers busy until all is answered."""
        while True:
            self._fill()
            if not self._sent:
                return
            try:
                future = self._done.get(timeout=_LOOK_S)
            except Empty:
                self._look()
                continue
            self._heard_s = time.monotonic()
            yield from self._answered(future, self._sent.pop(future))

    def end(self) -> None:
        """Give up what was not answered."""
        if self._sent:
            self.executor.give_up(self.name, self._sent)
            self._sent.clear()

    def _fill(self) -> None:
        while len(self._sent) < _AHEAD * max(1, self.executor.threads()) and (asked := self._drawn()):
            self._send(asked)

    def _drawn(self) -> list[tuple[int, Request]]:
        """Take as many requests as make a batch, fewer towards the end."""
        most, size, drawn = self._size(), 0, list[tuple[int, Request]]()
        while len(drawn) < most and size < _MOST_BYTES and (one := next(self._waiting, None)) is not None:
            drawn.append(one)
            size += sum(len(text) for text in one[1].values() if isinstance(text, str))
        self.left -= len(drawn)
        return drawn

    def _size(self) -> int:
        if self._each_s is None:
            return 1
        fair = math.ceil(self.left / (_AHEAD * max(1, self.executor.threads())))
        return max(1, min(_MOST, fair, int(_BATCH_S / max(self._each_s, 1e-6))))

    def _send(self, asked: list[tuple[int, Request]]) -> None:
        batch = self.executor.batch(self.name, self.work, (request for _, request in asked))
        future = self.executor.submit(batch, f"cdmpp-{self.name}-{next(self._numbers)}")
        self._sent[future] = asked
        future.add_done_callback(self._done.put)

    def _answered(self, future: Any, asked: list[tuple[int, Request]]) -> Generator[tuple[int, Reply]]:
        from distributed import KilledWorker

        try:
            answers = Answers.from_bytes(future.result())
        except KilledWorker:
            if len(asked) > 1:  # which of them is it?
                for one in asked:
                    self._send([one])
            else:
                yield asked[0][0], {"cause": "crash", "status": -9, "message": "workers died of it, one after another"}
            return
        except Exception as error:  # noqa: BLE001 - what a worker raised, or what Dask says of a lost connection
            if future.status == "error":
                raise RemoteError(f"a worker of {self.executor.address} failed: {_line(error)}") from error
            raise self.executor.lost(error) from error
        if answers.refused:
            self.executor.check()
            raise RemoteError(f"a worker of {self.executor.address} cannot work on this: {answers.refused}")
        each_s = answers.seconds / len(asked)
        self._each_s = each_s if self._each_s is None else 0.5 * (self._each_s + each_s)
        for (index, _), reply in zip(asked, answers.replies, strict=True):
            yield index, reply

    def _look(self) -> None:
        """Nothing came for a while: is anybody there?"""
        if self.executor.threads():
            self._heard_s = time.monotonic()
        elif time.monotonic() - self._heard_s > ALONE_S:
            raise RemoteError(
                f"the Dask scheduler {self.executor.address} has had no worker for {ALONE_S:g} s. What was done is "
                "kept: start workers, then give the same command"
            )


def _quiet() -> None:
    """Dask logs each lost connection, several lines each; what matters is raised here."""
    for name in ("distributed.client", "distributed.batched", "distributed.comm", "distributed.core"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _line(error: object) -> str:
    """Return a message of Dask's in one line."""
    return " ".join(str(error).split())[:300]
