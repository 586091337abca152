"""Lanes: worker processes that answer questions, each within its time; one for what is quick, one for what is not.

A thread cannot be stopped, so each question runs in a process: at its limit that is ended, with all that it started.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.platform.workers import Reply, Worker

log = logging.getLogger(__name__)
COMMAND = ("-m", "cdmpp.serve.worker")
MOST_AT_ONCE = 64
"""Questions that one pass of a model answers."""
_MOST_GROWN = 0.25
"""Share of its memory that a process may keep between questions."""
_AGAIN_S = 2.0
"""Seconds after which a process that did not start is started again."""


class BusyError(CdmppError):
    """As many questions wait as may."""


class TimeUpError(CdmppError):
    """There is no answer within the time of a question."""


class CrashError(CdmppError):
    """The process that worked on a question ended."""


@dataclass(eq=False)
class Job:
    """A question on its way."""

    verb: str
    asked: Mapping[str, Any]
    form: str
    deadline: float
    """On ``time.monotonic``."""
    answer: asyncio.Future[dict[str, Any]]
    batch: Hashable = None
    """Questions of one batch are answered at once; None: alone."""

    @property
    def is_waited_for(self) -> bool:
        """Return True while somebody waits and there is time."""
        return not self.answer.done() and time.monotonic() < self.deadline


@dataclass(eq=False)
class Lane:
    """Processes that answer questions of one kind, first come, first served."""

    name: str
    processes: int
    time_s: float
    most_waiting: int
    memory_bytes: int
    scratch: Path
    """Folder in which each process has one of its own for temporary files."""
    torchvision: frozenset[str] = frozenset()
    """Names of torchvision's networks, once a process is ready."""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    """A process is ready."""
    _waiting: deque[Job] = field(default_factory=deque)
    _came: asyncio.Condition = field(default_factory=asyncio.Condition)
    _workers: list[Worker] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _threads: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Begin to start the processes."""
        self._threads = ThreadPoolExecutor(self.processes, self.name)
        for number in range(self.processes):
            folder = self.scratch / f"{self.name}-{number}"
            request = {"op": "ready", "scratch": str(folder), "memory_bytes": self.memory_bytes}
            worker = Worker(COMMAND, ready=request, group=True)
            self._workers.append(worker)
            self._tasks.append(asyncio.create_task(self._run(worker, folder)))

    async def stop(self) -> None:
        """End the processes, whatever they do."""
        for task in self._tasks:
            task.cancel()
        for worker in self._workers:
            worker.kill()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._threads is not None:
            self._threads.shutdown(wait=True)
        for worker in self._workers:
            worker.stop()

    async def ask(self, verb: str, asked: Mapping[str, Any], form: str, batch: Hashable = None) -> dict[str, Any]:
        """Return the answer to a question, or its error, as ``worker.ask`` writes them.

        Raises:
            BusyError: as many wait as may.
            TimeUpError: there is no answer in time.
            CrashError: the process that worked on it ended.
        """
        if len(self._waiting) >= self.most_waiting:
            raise BusyError(f"{len(self._waiting)} questions wait already: ask again later")
        job = Job(verb, asked, form, time.monotonic() + self.time_s, asyncio.get_running_loop().create_future(), batch)
        await self._put(job)
        try:
            return await asyncio.wait_for(job.answer, self.time_s)
        except TimeoutError:
            raise TimeUpError(
                f"no answer within {self.time_s:g} seconds, the most of such a question: ask for less, or start the "
                "server with a longer limit"
            ) from None

    async def _put(self, *jobs: Job) -> None:
        async with self._came:
            self._waiting.extend(jobs)
            self._came.notify(len(jobs))

    async def _next(self) -> list[Job]:
        """Wait for a question, and take those with it that can be answered at once."""
        async with self._came:
            while True:
                while self._waiting and not self._waiting[0].is_waited_for:
                    self._waiting.popleft()
                if self._waiting:
                    break
                await self._came.wait()
            first = self._waiting.popleft()
            if first.batch is None:
                return [first]
            same = [one for one in self._waiting if one.batch == first.batch][: MOST_AT_ONCE - 1]
            for one in same:
                self._waiting.remove(one)
            return [first, *(one for one in same if one.is_waited_for)]

    async def _run(self, worker: Worker, folder: Path) -> None:
        """Be one process: start it, hand it questions, start it again where it ended."""
        while True:
            if not worker.running and not await self._started(worker, folder):
                await asyncio.sleep(_AGAIN_S)
                continue
            jobs = await self._next()
            limit_s = max(one.deadline for one in jobs) - time.monotonic()
            questions = [{"asked": one.asked, "form": one.form} for one in jobs]
            request = {"op": "ask", "verb": jobs[0].verb, "questions": questions}
            reply = await self._in_thread(lambda: worker.request(request, max(limit_s, 0.1)))  # noqa: B023
            if "cause" in reply and len(jobs) > 1:  # one of them is at fault
                for one in jobs:
                    one.batch = None
                await self._put(*(one for one in jobs if one.is_waited_for))
            else:
                _deliver(jobs, reply)
            if reply.get("grown_bytes", 0) > _MOST_GROWN * self.memory_bytes:
                log.info("a process of %s has grown by %.1f GB: it is started anew", self.name,
                         reply["grown_bytes"] / 1e9)  # fmt: skip
                worker.stop()

    async def _started(self, worker: Worker, folder: Path) -> bool:
        worker.stop()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            await self._in_thread(worker.start)
        except CdmppError as error:
            log.error("%s", error)
            return False
        self.torchvision = frozenset(worker.said.get("torchvision", ()))
        self.ready.set()
        return True

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _deliver(jobs: Sequence[Job], reply: Reply) -> None:
    for place, job in enumerate(jobs):
        if job.answer.done():
            continue
        if "answers" in reply:
            job.answer.set_result(reply["answers"][place])
        elif reply["cause"] == "timeout":
            job.answer.set_exception(TimeUpError("no answer within the time of a question: ask for less"))
        else:
            job.answer.set_exception(CrashError(
                "the process that worked on this ended: it asks for too much memory, or meets a fault of a compiler"
            ))  # fmt: skip
