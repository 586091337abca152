"""WorkerState: where one worker of a running job stands, and what it has done."""

from __future__ import annotations

import math
from collections import Counter

from cdmpp.synchrony.outcome import WorkerShare
from cdmpp.synchrony.worker import Worker


class WorkerState:
    """It changes with every event of its worker."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.batches = self.commits = self.dropped = 0
        self.waiting_s = self.communication_s = 0.0
        self.staleness: Counter[int] = Counter()
        self.sent_bytes = self.received_bytes = 0.0
        self.blocked_s: float | None = None
        """It stands still since then; None: it trains."""
        self.is_committing = False
        """From the decision to commit to the end of the pull."""
        self.trained = 0
        """Batches since it committed last."""
        self.update_batches = 0
        """Batches of the update under way."""
        self.weight: float | None = None
        """Factor of the update under way; None: the servers have not asked for it."""
        self.base = self.update_base = self.pulled_base = 0
        """Commits of others that had moved the parameters on which its present update began, the one under way, and as
        it pulled last."""
        self.pulled_moved = 0.0
        """Weighted samples that had moved the parameters as it pulled last."""
        self.own = 0
        """Commits of it that have moved the parameters."""
        self.left = 0
        """Servers that it waits for, in the present phase."""
        self.push_s = self.pushed_s = self.add_s = self.added_s = self.pull_s = math.inf
        """Times of the commit under way: the push begins and ends, the last server begins and ends to add, the pull
        begins."""

    def begin_commit(self) -> None:
        """Its update is complete."""
        self.is_committing, self.weight = True, None
        self.push_s = self.pushed_s = self.add_s = self.added_s = self.pull_s = math.inf
        self.update_batches, self.trained = self.trained, 0
        self.update_base, self.base = self.base, self.pulled_base

    def unblock(self, now_s: float) -> None:
        """Say why it stood still until now, and that it stands still no longer."""
        if self.blocked_s is None:
            return
        begun, self.blocked_s = self.blocked_s, None
        communicated = _within(begun, now_s, self.push_s, self.pushed_s)
        communicated += _within(begun, now_s, max(self.add_s, self.pushed_s), self.added_s)
        communicated += _within(begun, now_s, self.pull_s, now_s)
        self.communication_s += communicated
        self.waiting_s += now_s - begun - communicated

    def share(self) -> WorkerShare:
        """Return what it has done."""
        return WorkerShare(
            self.batches, self.batches * self.worker.samples, self.commits, self.dropped, self.waiting_s,
            self.communication_s, dict(sorted(self.staleness.items())), self.sent_bytes, self.received_bytes,
        )  # fmt: skip


def _within(begin_s: float, end_s: float, start_s: float, stop_s: float) -> float:
    """Seconds from ``start_s`` to ``stop_s`` that lie within the others."""
    start_s = start_s if start_s > begin_s else begin_s
    stop_s = stop_s if stop_s < end_s else end_s
    return stop_s - start_s if stop_s > start_s else 0.0
