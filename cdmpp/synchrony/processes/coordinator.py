"""The coordinator of a real job: it asks the synchrony's decisions, and keeps the time of every worker."""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from cdmpp.errors import CdmppError
from cdmpp.steps.decisions import Decisions, Next
from cdmpp.synchrony.processes.record import Commit
from cdmpp.synchrony.processes.wire import tell, told


@dataclass(frozen=True)
class Pipes:
    """The ends of all pipes of a job."""

    workers: Sequence[Connection]
    servers: Sequence[Connection]
    threads: Sequence[Sequence[Connection]]
    """By server, then by worker."""


@dataclass
class Ledger:
    """What one worker has done so far."""

    doing: str = "train"
    since_s: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: {"train": 0.0, "communicate": 0.0, "wait": 0.0})
    samples: int = 0
    batch_s: list[float] = field(default_factory=list)
    uncommitted: int = 0
    """Batches since the commit before."""
    pulled_at: int = 0
    """Commits that were added before its last pull began."""
    pulls: int = 0
    weight: float = 0.0
    missing: int = 0
    """Servers that have not yet said that they are done with what they were last told."""
    commits: list[Commit] = field(default_factory=list)

    def turn(self, doing: str, now_s: float) -> float:
        """Begin something else; return the seconds of what ends."""
        took_s = now_s - self.since_s
        self.seconds[self.doing] += took_s
        self.doing, self.since_s = doing, now_s
        return took_s


@dataclass
class Losses:
    """The losses of batches since the last time they were asked for."""

    period_s: float
    next_s: float
    fresh: list[float] = field(default_factory=list)

    def take(self) -> float | None:
        """Return their mean and forget them; None: there are none."""
        mean = float(np.mean(self.fresh)) if self.fresh else None
        self.fresh, self.next_s = [], self.next_s + self.period_s
        return mean


class Coordinator:
    """The one place where a job's decisions are asked, in one thread, in the order of what happens.

    Commits are added one after another, in the order in which the servers had them whole.
    """

    def __init__(self, decisions: Decisions, pipes: Pipes, point_s: float, keeps_parameters: bool) -> None:
        """Prepare a job; ``point_s``: seconds from one point of the loss to the next, ``losses`` has them."""
        self._decisions, self._pipes, self._keeps_parameters = decisions, pipes, keeps_parameters
        self.ledgers = [Ledger() for _ in pipes.workers]
        self.busy_s = [0.0 for _ in pipes.servers]
        self.queued_s = 0.0
        """Seconds from the arrival of a commit until it is added, of all commits together."""
        self.losses: list[tuple[float, int, float | None]] = []
        """Time, samples so far, mean loss of the batches since the point before."""
        self.snapshots: list[list[bytes]] = []
        """The parameters at each of ``losses``, a part from each server."""
        self._points = Losses(point_s, point_s)
        check_s = decisions.check_s
        self._checks = Losses(check_s, check_s) if check_s is not None else None
        self._added = 0
        self._arrived: deque[tuple[int, float]] = deque()
        """Workers whose commit is whole, and since when; the first one is being added."""
        self._released: Sequence[int] = ()
        self._begin_s = 0.0
        self._selector = selectors.DefaultSelector()
        for worker, pipe in enumerate(pipes.workers):
            self._selector.register(pipe, selectors.EVENT_READ, (self._from_worker, worker))
        for server, threads in enumerate(pipes.threads):
            for worker, pipe in enumerate(threads):
                self._selector.register(pipe, selectors.EVENT_READ, (self._from_server, worker, server))

    def run(self, seconds: float, initial_loss: float) -> None:
        """Start the clock, and stop it after ``seconds``.

        Raises:
            CdmppError: a process that failed or ended before.
        """
        self._decisions.observe(initial_loss, 0.0)
        self._begin_s = time.monotonic()
        self._point(0.0)
        for pipe in self._pipes.workers:
            tell(pipe, do="train")
        while (now_s := self._now()) < seconds:
            self._look(now_s)
            wake_s = min(seconds, self._points.next_s, *([self._checks.next_s] if self._checks else []))
            for key, _ in self._selector.select(max(0.0, wake_s - self._now())):
                handle, *numbers = key.data
                try:
                    handle(*numbers, told(key.fileobj))  # type: ignore[arg-type]
                except (EOFError, ConnectionError):
                    raise CdmppError(f"{_named(*numbers)} ended before the job did") from None
        for ledger in self.ledgers:
            ledger.turn("train", seconds)
        self._point(seconds)
        self._selector.close()

    def _now(self) -> float:
        return time.monotonic() - self._begin_s

    def _look(self, now_s: float) -> None:
        """Look at the loss where it is time."""
        if now_s >= self._points.next_s:
            self._point(now_s)
        if self._checks and now_s >= self._checks.next_s and (loss := self._checks.take()) is not None:
            self._decisions.observe(loss, now_s)

    def _point(self, now_s: float) -> None:
        loss = self._points.take() if now_s else None
        self.losses.append((now_s, sum(one.samples for one in self.ledgers), loss))
        if self._keeps_parameters:
            for pipe in self._pipes.servers:
                tell(pipe, do="copy")
            self.snapshots.append([pipe.recv_bytes() for pipe in self._pipes.servers])

    def _from_worker(self, worker: int, message: dict[str, Any]) -> None:
        ledger, now_s = self.ledgers[worker], self._now()
        if "error" in message:
            raise CdmppError(f"worker {worker} failed: {message['error']}")
        if message["event"] == "pulled":
            ledger.turn("train", now_s)
            ledger.pulls += 1
            tell(self._pipes.workers[worker], do="train")
            self._push(self._decisions.pulled(worker, now_s), now_s)
            return
        ledger.batch_s.append(ledger.turn("wait", now_s))
        ledger.samples += message["samples"]
        ledger.uncommitted += 1
        for losses in (self._points, self._checks):
            if losses:
                losses.fresh.append(message["loss"])
        if self._decisions.after_batch(worker, now_s) is Next.TRAIN:
            ledger.turn("train", now_s)
            tell(self._pipes.workers[worker], commits=False)
        else:
            self._push(self._decisions.ready(worker, now_s), now_s)

    def _push(self, workers: Iterable[int], now_s: float) -> None:
        for worker in workers:
            self.ledgers[worker].turn("communicate", now_s)
            self.ledgers[worker].missing = len(self._pipes.servers)
            tell(self._pipes.workers[worker], commits=True)

    def _from_server(self, worker: int, server: int, message: dict[str, Any]) -> None:
        ledger, now_s = self.ledgers[worker], self._now()
        self.busy_s[server] = message.get("busy_s", self.busy_s[server])
        ledger.missing -= 1
        if ledger.missing:
            return
        if message["event"] == "arrived":
            ledger.turn("wait", now_s)
            self._arrived.append((worker, now_s))
            if len(self._arrived) == 1:
                self._add(now_s)
        elif message["event"] == "added":
            self._added_by_all(worker, now_s)
        else:
            self._release(now_s)

    def _add(self, now_s: float) -> None:
        """Add the first of the commits that have arrived."""
        worker, _ = self._arrived[0]
        ledger = self.ledgers[worker]
        ledger.weight = self._decisions.weight(worker, now_s)
        ledger.turn("communicate", now_s)
        if ledger.weight:
            self._tell_servers(worker, do="add", weight=ledger.weight)
        else:
            self._added_by_all(worker, now_s)

    def _added_by_all(self, worker: int, now_s: float) -> None:
        ledger = self.ledgers[worker]
        ledger.commits.append(Commit(now_s, ledger.uncommitted, self._added - ledger.pulled_at, ledger.weight))
        ledger.uncommitted = 0
        self._added += ledger.weight != 0
        self._released = self._decisions.applied(worker, now_s)
        if ledger.weight and not self._decisions.gathering:
            ways = {"momentum": self._decisions.momentum, "nesterov": self._decisions.nesterov}
            self._tell_servers(worker, do="move", **ways)
        else:
            self._release(now_s)

    def _release(self, now_s: float) -> None:
        """End the adding of the first commit: those pull who may, and the next one is added."""
        worker, since_s = self._arrived.popleft()
        self.queued_s += now_s - since_s
        self.ledgers[worker].turn("wait", now_s)
        for released in self._released:
            self.ledgers[released].pulled_at = self._added
            self.ledgers[released].turn("communicate", now_s)
            for threads in self._pipes.threads:
                tell(threads[released], do="send")
        if self._arrived:
            self._add(now_s)

    def _tell_servers(self, worker: int, **order: Any) -> None:
        self.ledgers[worker].missing = len(self._pipes.servers)
        for threads in self._pipes.threads:
            tell(threads[worker], **order)


def _named(worker: int, *server: int) -> str:
    return f"the thread of server {server[0]} for worker {worker}" if server else f"worker {worker}"
