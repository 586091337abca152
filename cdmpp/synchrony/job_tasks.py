"""JobTasks: the tasks of a job. Each is made once, for a job repeats them a million times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cdmpp.simulate.flow import Flow
from cdmpp.simulate.task import Task
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.worker import Worker

Seconds = float | Callable[[float], float]
_DRAWN = 512
"""Seconds of batches that are drawn at once."""


class JobKey(NamedTuple):
    """A key names a task of a job; only one of a name is under way."""

    kind: str
    """``start``, ``batch``, ``push``, ``add``, ``pull`` or ``check``."""
    worker: int
    server: int


class Adder(NamedTuple):
    """The resource that adds updates, one for each server."""

    server: int


class JobTasks:
    """Tasks by worker, transfers also by server."""

    def __init__(self, job: Job, seed: int) -> None:
        self._job = job
        self._servers = range(len(job.servers))
        self._seed = seed

    @cached_property
    def batches(self) -> list[Task]:
        """Worker -> a batch of it, whose seconds are drawn as it starts where they vary."""
        return [
            Task(JobKey("batch", number, -1), _seconds(worker, self._seed, number), label="batch")
            for number, worker in enumerate(self._job.workers)
        ]

    @cached_property
    def rested(self) -> list[Task]:
        """Worker -> a batch of it right after it stood still for an exchange."""
        return [
            replace(task, duration=_less(task.duration, worker.rested_s)) if worker.rested_s else task
            for task, worker in zip(self.batches, self._job.workers, strict=True)
        ]

    def starts(self) -> list[Task]:
        """Return the first task of each worker."""
        return [
            Task(JobKey("start", number, -1), worker.start_s, label="start") if worker.start_s else self.batches[number]
            for number, worker in enumerate(self._job.workers)
        ]

    @cached_property
    def pushes(self) -> list[list[Task]]:
        """Worker -> the transfers of a push, one to each server."""
        return [self._transfers("push", worker) for worker in range(len(self._job.workers))]

    @cached_property
    def pulls(self) -> list[list[Task]]:
        """Worker -> the transfers of a pull, one from each server."""
        return [self._transfers("pull", worker) for worker in range(len(self._job.workers))]

    @cached_property
    def adds(self) -> list[list[Task]]:
        """Worker -> the adding of a commit, one on each server. They take no time on a server without a limit."""
        seconds = [self._job.bytes_of(i) / server.add_bytes_per_s for i, server in enumerate(self._job.servers)]
        return [
            [Task(JobKey("add", worker, i), seconds[i], (Adder(i),), label="add") for i in self._servers]
            for worker in range(len(self._job.workers))
        ]

    def _transfers(self, kind: str, worker: int) -> list[Task]:
        tasks = list[Task]()
        for server in self._servers:
            links = self._job.way(worker, server, kind == "pull")
            flow = Flow(self._job.bytes_of(server), links) if links else None
            tasks.append(Task(JobKey(kind, worker, server), self._job.latency_s(worker, server), flow=flow, label=kind))
        return tasks


def draws(worker: Worker, count: int, generator: np.random.Generator) -> Sequence[float]:
    """Draw the seconds of so many batches, from a log-normal distribution: a batch never takes less than no time."""
    variance = np.log1p(worker.spread**2)
    found: list[float] = generator.lognormal(np.log(worker.batch_s) - variance / 2, np.sqrt(variance), count).tolist()
    return found


def _less(seconds: Seconds, by_s: float) -> Seconds:
    """The same seconds, each by so many fewer, and none below 0."""
    if callable(seconds):
        return lambda now_s: max(0.0, seconds(now_s) - by_s)
    return max(0.0, seconds - by_s)


def _seconds(worker: Worker, seed: int, number: int) -> Seconds:
    """Seconds of each batch, or what draws them."""
    if not worker.spread:
        return worker.batch_s
    generator, drawn = np.random.default_rng([seed, number]), list[float]()

    def next_s(_: float) -> float:
        if not drawn:
            drawn.extend(reversed(draws(worker, _DRAWN, generator)))
        return drawn.pop()

    return next_s
