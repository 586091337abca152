"""Measures programs in windows and keeps them as records. Nothing is built while a window is open."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cdmpp.data.records import append_records, read_info, read_records, write_info
from cdmpp.data.schema import Record
from cdmpp.errors import CdmppError, DataError
from cdmpp.measure import protocol, software
from cdmpp.measure.clock import build_clock
from cdmpp.measure.collection import Collection
from cdmpp.measure.disturbance import Disturbance
from cdmpp.measure.labels import record_of
from cdmpp.measure.protocol import Rule, Timed
from cdmpp.measure.reference_kernels import ReferenceKernels, build_reference_kernels
from cdmpp.measure.remote import ATTEMPTS, SESSION_LIMIT_S
from cdmpp.measure.report import report
from cdmpp.measure.settings import MeasureSettings
from cdmpp.measure.subjects import Subject
from cdmpp.measure.window import Windows
from cdmpp.measure.worker import COMMAND
from cdmpp.platform.workers import Worker

log = logging.getLogger(__name__)

FORCE = "force=true (measure.force=true in finetune)"
REFERENCE_FILE = "reference_kernels.jsonl"
BUSY_WINDOWS = 3
"""So many in a row that cannot be recorded end the run."""


class Collector(Collection):
    """A collector writes records of one device into ``folder``: programs of its plan, timed here or over RPC.

    Unless ``settings.force``, a busy machine (see ``Disturbance``) ends ``run`` with a ``DataError`` before anything is
    timed, and programs whose visits ended in a busy window are not recorded: a rerun measures them again.
    """

    rule: Rule = protocol.CPU
    """The rule by which visits are taken."""
    features = "cdmpp"
    """Kind of vectors that the programs have, see ``layout.FEATURES``: a folder holds those of one kind."""

    def __init__(self, settings: MeasureSettings, folder: Path) -> None:
        super().__init__(settings, folder)
        self.remote = settings.runner == "rpc"
        self.measurers = self._measurers()
        self._software = self._versions()
        here = f"{software.processor()}, {os.cpu_count()} processors"
        self._host = f"rpc:{settings.server_key}" if self.remote else here
        self.disturbance = Disturbance()
        self._left_out = self._kept = self._busy_windows = 0

    def run(self) -> dict[str, Any]:
        """Run ``Collection.run``; ``busy_not_recorded`` counts programs that were timed while the machine was busy."""
        if not (self.remote or self.settings.force):
            Disturbance.now().check(FORCE)
        found = super().run()
        return {**found, "busy_not_recorded": self._left_out} if self._left_out else found

    def _measurers(self) -> list[Worker]:
        # Over RPC the children only hold sessions and need no core of their own.
        cores = [] if self.remote else self.cores[-self.settings.threads :]
        return [Worker(COMMAND, cores) for _ in range(self.settings.servers())]

    def _versions(self) -> str:
        return software.versions()

    def _recall(self) -> None:
        self._check_features()
        for record in read_records(self.folder, self.settings.device):
            self.journal.record(record.record_id, record.task_id)

    def _check_features(self) -> None:
        """``DataError`` where the folder holds programs of another kind."""
        if not (self.folder / "dataset.json").exists():
            return
        if (found := read_info(self.folder).get("features", "cdmpp")) != self.features:
            raise DataError(
                f"{self.folder} holds programs with features={found}, these have features={self.features}: a data set "
                "is of one kind, give another folder, out=FOLDER"
            )

    def _prepare(self, scratch: Path) -> None:
        self._write_info()
        self._clock = None if self.remote else self._build_clock(scratch)
        programs = self._reference_kernels(scratch)
        references = ReferenceKernels(self.measurers[0], self.folder / REFERENCE_FILE, self._timing, programs)
        limit_s = ATTEMPTS * SESSION_LIMIT_S if self.remote else protocol.VISIT_LIMIT_S
        asked_s = self.settings.min_separation_s
        separation_s = self.rule.min_separation_s if asked_s is None else asked_s
        self.windows: Windows[Subject] = Windows(self.measurers, references, self._timing, limit_s, separation_s)
        if not self.remote:  # leave the measuring core alone, where there is more than one
            os.sched_setaffinity(0, {self.cores[0]})

    def _reference_kernels(self, scratch: Path) -> Sequence[Timed]:
        return build_reference_kernels(self.builders[0], self.settings.target, scratch)

    def _build_clock(self, scratch: Path) -> str | None:
        try:
            return str(build_clock(scratch))
        except CdmppError as error:
            log.warning("records will not tell the clock that they were taken at: %s", error)
            return None

    def _pending(self) -> int:
        return len(self.windows.active)

    def _take(self, built: list[Subject]) -> None:
        for worker in self.measurers:
            worker.start()
        self.progress.show(phase="measure")
        finished = self.windows.measure(built, self._fail)
        kept = self._undisturbed(finished)
        self._keep(kept)
        for subject in kept:
            self.journal.record(subject.record_id, subject.task.task_id)
        for subject in finished:
            subject.library.unlink(missing_ok=True)
        self._write_info()

    def _look(self, finished: Sequence[Subject]) -> Disturbance:
        visits = [subject.visits for subject in finished]
        return Disturbance.of_visits(visits) if self.remote else Disturbance.now(visits)

    def _undisturbed(self, finished: list[Subject]) -> list[Subject]:
        """Return the records of the programs ``finished`` in a window; none where the machine was busy."""
        self.disturbance = self._look(finished)
        if not finished or self.settings.force or not self.disturbance.reasons:
            self._busy_windows = 0 if finished else self._busy_windows
            self._kept += len(finished)
            return finished
        self._left_out += len(finished)
        self._busy_windows += 1
        log.warning("%d programs are not recorded: %s", len(finished), "; ".join(self.disturbance.reasons))
        if self._busy_windows == BUSY_WINDOWS:
            self._refuse()
        return []

    def _finish(self) -> None:
        if self._left_out and not self._kept:
            self._refuse()

    def _refuse(self) -> None:
        self.disturbance.check(FORCE, f"{self._kept} programs were recorded, {self._left_out} were timed and are not")

    def _timing(self, item: Timed) -> dict[str, Any]:
        if self.remote:
            return item.timing_request("time_rpc", tracker=self.settings.tracker, key=self.settings.server_key)
        return item.timing_request("time", device="cpu", clock=self._clock)

    def _keep(self, finished: list[Subject]) -> None:
        append_records(self.folder, [self._record(subject) for subject in finished])

    def _record(self, subject: Subject) -> Record:
        return record_of(
            subject.visits,
            self.rule,
            marks=self.disturbance.mark,
            record_id=subject.record_id,
            task_id=subject.task.task_id,
            device=self.settings.device,
            target=self.target,
            schedule=subject.schedule,
            software=self._software,
            host=self._host,
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _write_info(self) -> None:
        write_info(
            self.folder,
            name=self.folder.name,
            devices=[self.settings.device],
            protocols={self.rule.protocol_id: self.rule.describe(self.settings.threads)},
            host=self._host,
            software=json.loads(self._software),
            programs=len(self.journal.recorded),
            **self.subjects.info,
        )

    def _report(self) -> dict[str, Any]:
        return report(self.folder, self.settings.device)

    def _stop(self) -> None:
        super()._stop()
        for worker in self.measurers:
            worker.stop()
        os.sched_setaffinity(0, set(self.cores))
