"""The loop that measuring and packing share: a batch is sampled, built, taken. Stop it anywhere and run it again."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cdmpp.measure import protocol
from cdmpp.measure.journal import Journal
from cdmpp.measure.progress import CollectionProgress
from cdmpp.measure.settings import MeasureSettings
from cdmpp.measure.subjects import PlannedSubjects, Subject, Subjects
from cdmpp.measure.worker import COMMAND
from cdmpp.platform.files import FAILURES_FILE
from cdmpp.platform.lock import writing
from cdmpp.platform.workers import Reply, Worker, run_many


class Collection(ABC):
    """It builds programs of one device; a subclass says what becomes of them."""

    failures_file = FAILURES_FILE

    def __init__(self, settings: MeasureSettings, folder: Path) -> None:
        self.settings = settings
        self.folder = Path(folder)
        self.target = json.dumps(settings.target, sort_keys=True)
        self.cores = sorted(os.sched_getaffinity(0))
        pinned = itertools.cycle(self.cores)
        self.builders = [Worker(COMMAND, [next(pinned)]) for _ in range(settings.builders)]

    def run(self) -> dict[str, Any]:
        """Go on until the subjects, the budget or the time are used up; ``CdmppError`` where another process writes."""
        with writing(self.folder, f"measuring of {self.settings.device}"):
            self.journal = Journal(self.folder, self.settings.device, self.failures_file)
            self._recall()
            self.progress = CollectionProgress(self.folder, len(self.journal.recorded), self.settings.progress)
            with self.progress, tempfile.TemporaryDirectory(prefix="cdmpp-measure-") as scratch:
                try:
                    self._collect(Path(scratch))
                finally:
                    self._stop()
            return self._report()

    @abstractmethod
    def _recall(self) -> None:
        """Put what the folder holds already into the journal; nobody else can write there now."""

    def _subjects(self, scratch: Path) -> Subjects:
        return PlannedSubjects(self.settings, self.folder, self.target, self.journal, self.builders, scratch)

    @abstractmethod
    def _prepare(self, scratch: Path) -> None: ...

    @abstractmethod
    def _take(self, built: list[Subject]) -> None:
        """One batch of built programs; none where only pending ones are left."""

    def _pending(self) -> int:
        """Built programs that need another batch."""
        return 0

    def _finish(self) -> None:  # noqa: B027 - most have nothing left
        """Nothing is left to build or take."""

    @abstractmethod
    def _report(self) -> dict[str, Any]: ...

    def _stop(self) -> None:
        for worker in self.builders:
            worker.stop()

    def _collect(self, scratch: Path) -> None:
        begin, limit_s = time.monotonic(), 60 * (self.settings.time_limit_min or float("inf"))
        self.progress.show(phase="sample")
        self.subjects = self._subjects(scratch)
        self._prepare(scratch)
        groups = iter(self.subjects)
        while True:
            late = time.monotonic() - begin > limit_s
            built = self._build([] if late else self._next_batch(groups))
            if not built and not self._pending():
                return self._finish()
            self._take(built)
            done = len(self.journal.recorded)
            total = done + self._pending() + self.subjects.expected
            budget = self.settings.budget
            self.progress.show(done=done, total=total if budget is None else min(total, max(budget, done)))

    def _next_batch(self, groups: Iterator[list[Subject]]) -> list[Subject]:
        self.progress.show(phase="sample")
        room = self.settings.batch
        if self.settings.budget is not None:
            room = min(room, self.settings.budget - len(self.journal.recorded) - self._pending())
        batch: list[Subject] = []
        while len(batch) < room and (group := next(groups, None)) is not None:
            batch += group
        # A task is not torn apart at the edge of a batch; only the budget cuts one.
        return batch if room == self.settings.batch else batch[: max(room, 0)]

    def _build(self, subjects: list[Subject]) -> list[Subject]:
        self.progress.show(phase="build")
        target = self.settings.target
        requests = [subject.build_request(subject.task.workload, subject.schedule, target) for subject in subjects]
        failed = set()
        for index, reply in run_many(self.builders, requests, protocol.BUILD_LIMIT_S):
            if "cause" in reply:
                if reply["cause"] in ("crash", "timeout"):
                    reply["cause"] = "build " + reply["cause"]
                self._fail(subjects[index], reply)
                failed.add(index)
        return [subject for index, subject in enumerate(subjects) if index not in failed]

    def _fail(self, subject: Subject, reply: Reply) -> None:
        self.journal.fail(subject.record_id, subject.task.task_id, reply)
        subject.library.unlink(missing_ok=True)
