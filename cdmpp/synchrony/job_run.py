"""JobRun: the policy of the event engine that makes a job happen, one event after another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from cdmpp.errors import CdmppError
from cdmpp.simulate.task import Task
from cdmpp.simulate.timeline import Span
from cdmpp.steps.decisions import Decisions, Next
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.job_tasks import JobKey, JobTasks
from cdmpp.synchrony.limit import limit_of
from cdmpp.synchrony.outcome import JobOutcome
from cdmpp.synchrony.progress import Progress, ProgressLog
from cdmpp.synchrony.server_state import ServerState
from cdmpp.synchrony.worker_state import WorkerState


class JobRun:
    """It asks ``decisions`` at every event and says which tasks come next, until the job is over."""

    def __init__(
        self, job: Job, decisions: Decisions, seconds: float, commits: int | None, seed: int,
        loss: Callable[[Progress], float] | None, staleness_penalty: float = 0.0,
    ) -> None:  # fmt: skip
        self.job, self.decisions = job, decisions
        self._seconds, self._most = seconds, commits
        self._loss, self._penalty = loss, staleness_penalty
        self._workers = [WorkerState(worker) for worker in job.workers]
        self._servers = [ServerState(job.bytes_of(number)) for number in range(len(job.servers))]
        self._tasks = JobTasks(job, seed)
        self._gathered: list[int] = []
        """Workers whose commits are added and have not moved the parameters."""
        self._moved = self._samples = self._stale = self._commits = 0
        """Commits that have moved the parameters, their samples, the sum of their staleness; all added commits."""
        self._weighted_samples = self._velocity = 0.0
        self._log = ProgressLog()
        self._seen: list[float] = []
        """Losses of the batches since the last look, of those whose synchrony goes by it."""
        self._is_over = False

    def start(self) -> list[Task]:
        """Return the first tasks: a batch of every worker, and the first look at the loss."""
        return [*self._tasks.starts(), *self._check(0.0)]

    def ended(self, span: Span, now_s: float) -> Iterable[Task]:
        """Return the tasks that follow the end of one; the policy of the engine."""
        if now_s > self._seconds:
            self._finish(self._seconds)
        if self._is_over:
            return ()
        key = span.task.key
        assert isinstance(key, JobKey)
        if key.kind == "batch":
            return self._batch_ended(key.worker, now_s)
        if key.kind == "push":
            return self._pushed(key, now_s)
        if key.kind == "add":
            self._servers[key.server].added(span.start_s, now_s)
            return self._added(key, span.start_s, now_s)
        if key.kind == "pull":
            return self._pulled(key, now_s)
        return [self._tasks.batches[key.worker]] if key.kind == "start" else self._check(now_s)

    def outcome(self) -> JobOutcome:
        """Return what the job has done."""
        if not self._is_over:
            raise CdmppError(
                f"the job stands still after {self._commits} commits: its synchrony lets no worker go on. Each of its "
                "answers `ready`, `applied` and `pulled` must in the end release every worker"
            )
        seconds = self._seconds
        servers = tuple(state.share(seconds) for state in self._servers)
        workers = tuple(state.share() for state in self._workers)
        return JobOutcome(seconds, workers, servers, limit_of(self.job, seconds, workers, servers), self._log.points)

    def _finish(self, now_s: float) -> None:
        if not self._is_over:
            self._is_over, self._seconds = True, now_s
            for state in self._workers:
                state.unblock(now_s)

    def _check(self, now_s: float) -> list[Task]:
        """Let the synchrony look at the mean loss of the batches since its last look, as it does in a real job."""
        if self._loss is None or self.decisions.check_s is None:
            return []
        if not now_s:
            self._seen = [self._loss(self._progress(now_s))]
        if self._seen:
            self.decisions.observe(math.fsum(self._seen) / len(self._seen), now_s)
        self._seen = []
        return [Task(JobKey("check", -1, -1), self.decisions.check_s, label="check")]

    def _progress(self, now_s: float) -> Progress:
        return Progress(now_s, self._samples, self._weighted_samples, self._moved, self._stale / max(1, self._moved))

    def _batch_ended(self, worker: int, now_s: float) -> list[Task]:
        state = self._workers[worker]
        if self._loss is not None and self.decisions.check_s is not None:
            moved = state.pulled_moved + state.trained * state.worker.samples
            self._seen.append(self._loss(self._progress(now_s)._replace(weighted_samples=moved)))
        state.batches += 1
        state.trained += 1
        if self.decisions.after_batch(worker, now_s) is Next.TRAIN:
            return [self._tasks.batches[worker]]
        if state.is_committing:
            state.blocked_s = now_s
            return []
        return self._commit(worker, now_s)

    def _commit(self, worker: int, now_s: float) -> list[Task]:
        state = self._workers[worker]
        state.begin_commit()
        tasks = self._push(self.decisions.ready(worker, now_s), now_s)
        if self.job.overlap:
            return [*tasks, self._tasks.batches[worker]]
        state.blocked_s = now_s
        return tasks

    def _push(self, workers: Iterable[int], now_s: float) -> list[Task]:
        tasks = list[Task]()
        for worker in workers:
            state = self._workers[worker]
            state.push_s, state.left = now_s, len(self._servers)
            tasks += self._tasks.pushes[worker]
        return tasks

    def _pushed(self, key: JobKey, now_s: float) -> list[Task]:
        state, server = self._workers[key.worker], self._servers[key.server]
        state.pushed_s = now_s
        if self.job.servers[key.server].on != key.worker:
            state.sent_bytes += server.bytes
            server.received_bytes += server.bytes
        if state.weight is None:
            state.weight = self.decisions.weight(key.worker, now_s)
        adding = self._tasks.adds[key.worker][key.server]
        if not state.weight or not adding.duration:
            return self._added(key, now_s, now_s)
        server.arrived(now_s)
        return [adding]

    def _added(self, key: JobKey, start_s: float, now_s: float) -> list[Task]:
        """A server has added its part of a commit, or dropped it; the last one tells the synchrony."""
        state = self._workers[key.worker]
        state.add_s, state.added_s = start_s, now_s
        state.left -= 1
        if state.left:
            return []
        released = self.decisions.applied(key.worker, now_s)
        if state.weight:
            state.commits += 1
            self._commits += 1
            self._gathered.append(key.worker)
        else:
            state.dropped += 1
        if not self.decisions.gathering:
            self._move(now_s)
        if self._commits == self._most:
            self._finish(now_s)
            return []
        tasks = list[Task]()
        for worker in released:
            pulling = self._workers[worker]
            pulling.pull_s, pulling.left = now_s, len(self._servers)
            pulling.pulled_base = self._moved - pulling.own
            pulling.pulled_moved = self._weighted_samples
            tasks += self._tasks.pulls[worker]
        return tasks

    def _move(self, now_s: float) -> None:
        """What was gathered moves the parameters, by the servers' momentum over several moves."""
        gathered, momentum = 0.0, self.decisions.momentum
        for worker in self._gathered:
            state = self._workers[worker]
            staleness = self._moved - state.own - state.update_base
            state.staleness[staleness] += 1
            self._stale += staleness
            samples = state.update_batches * state.worker.samples
            self._samples += samples
            weight = state.weight or 0.0
            counted = weight / (1 + self._penalty * weight * staleness)
            gathered += samples * counted
        self._velocity = momentum * self._velocity + gathered
        self._weighted_samples += gathered + momentum * self._velocity if self.decisions.nesterov else self._velocity
        for worker in self._gathered:
            self._moved += 1
            self._workers[worker].own += 1
            if self._log.wants(self._moved):
                self._log.add(self._progress(now_s))
        self._gathered.clear()

    def _pulled(self, key: JobKey, now_s: float) -> list[Task]:
        state, server = self._workers[key.worker], self._servers[key.server]
        if self.job.servers[key.server].on != key.worker:
            state.received_bytes += server.bytes
            server.sent_bytes += server.bytes
        state.left -= 1
        if state.left:
            return []
        was_blocked, state.is_committing = state.blocked_s is not None, False
        state.unblock(now_s)
        tasks = self._push(self.decisions.pulled(key.worker, now_s), now_s)
        if not self.job.overlap:
            state.base = state.pulled_base
            return [*tasks, self._tasks.rested[key.worker]]
        return [*tasks, *self._commit(key.worker, now_s)] if was_blocked else tasks
