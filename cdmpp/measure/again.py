"""Measure recorded programs again: for the noise floor of the labels, or to better the doubtful ones."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cdmpp.data.records import read_records, read_tasks, replace_records, write_info
from cdmpp.data.schema import Record
from cdmpp.errors import DataError
from cdmpp.measure.collector import Collector
from cdmpp.measure.disturbance import Disturbance
from cdmpp.measure.labels import visits_of
from cdmpp.measure.report import repeat_report
from cdmpp.measure.settings import MeasureSettings
from cdmpp.measure.subjects import Subject, Subjects
from cdmpp.platform.files import REPEATS_FILE, append_lines, read_entries

MIN_AGE_S = 3600.0
"""A record younger than this is not repeated: the machine may still be in the same state."""
MAX_VISITS = 8
"""A record with more visits is not revised any more: it does not settle."""


class _Again(Collector):
    """Times ``count`` programs of a data set folder again: the first of those that ``_choose`` returns."""

    def __init__(self, settings: MeasureSettings, folder: Path, count: int) -> None:
        super().__init__(replace(settings, budget=None), folder)
        self.count = count

    def _recall(self) -> None:
        self._check_features()
        self.tasks = read_tasks(self.folder)
        records = self._choose(read_records(self.folder, self.settings.device))
        self.records = {record.record_id: record for record in records[: self.count]}
        self.journal.failed.clear()  # what failed once may be tried again

    @abstractmethod
    def _choose(self, records: Sequence[Record]) -> list[Record]: ...

    def _subjects(self, scratch: Path) -> Subjects:
        chosen = [record for key, record in self.records.items() if key not in self.journal]
        return Subjects(self._subject(r, scratch) for r in chosen)

    def _subject(self, record: Record, scratch: Path) -> Subject:
        return Subject.of(record.record_id, self.tasks[record.task_id], record.schedule, scratch)


class Repeater(_Again):
    """A repeater times programs again, by the same protocol, into ``repeats.jsonl`` next to them.

    Which ones is decided by a hash of their ids, so that a rerun goes on with the same list. ``run`` returns the
    deviations (see ``repeat_report``); ``DataError`` where the folder holds no record that is old enough.
    """

    failures_file = "repeat_failures.jsonl"

    def _recall(self) -> None:
        super()._recall()
        for entry in read_entries(self.folder / REPEATS_FILE, self.settings.device, "again_s", "first_s"):
            self.journal.recorded.add(entry["record_id"])

    def _choose(self, records: Sequence[Record]) -> list[Record]:
        now = datetime.now(UTC)
        old = [record for record in records if _age_s(record, now) >= MIN_AGE_S]
        if not old:
            device = self.settings.device
            raise DataError(f"{self.folder} holds no record of {device} that is an hour old: nothing to repeat yet")
        return sorted(old, key=lambda record: hashlib.sha256(record.record_id.encode()).hexdigest())

    def _keep(self, finished: list[Subject]) -> None:
        append_lines(self.folder / REPEATS_FILE, map(self._entry, finished))

    def _entry(self, subject: Subject) -> dict[str, Any]:
        again, first = self._record(subject), self.records[subject.record_id]
        kept = ("record_id", "device", "spread", "measured_at", "protocol", "host")
        hours = round(_age_s(first, datetime.now(UTC)) / 3600, 2)
        times = {"first_s": first.latency_s, "again_s": again.latency_s, "hours_apart": hours}
        return {**{name: getattr(again, name) for name in kept}, **times}

    def _write_info(self) -> None:
        pass  # the data set itself does not change

    def _report(self) -> dict[str, Any]:
        return repeat_report(self.folder, self.settings.device)


class Reviser(_Again):
    """A reviser times programs again whose label is in doubt, and merges the visits with those recorded.

    The widest spread comes first. A label stays the minimum over all visits, so it can only fall.
    ``DataError`` where no label of the device is in doubt.
    """

    failures_file = "revision_failures.jsonl"

    def _choose(self, records: Sequence[Record]) -> list[Record]:
        doubtful = [r for r in records if r.flagged and len(visits_of(r).samples) < MAX_VISITS]
        if not doubtful:
            device = self.settings.device
            raise DataError(f"{self.folder}: no label of {device} is in doubt, there is nothing to revise")
        return sorted(doubtful, key=lambda record: (-record.spread, record.record_id))

    def _look(self, finished: Sequence[Subject]) -> Disturbance:
        return replace(super()._look(finished), spread=None)  # these programs are chosen because they differ

    def _keep(self, finished: list[Subject]) -> None:
        replace_records(self.folder, [self._merged(subject) for subject in finished])

    def _merged(self, subject: Subject) -> Record:
        old = self.records[subject.record_id]
        recorded = visits_of(old)
        subject.visits.samples[:0], subject.visits.quiet[:0] = recorded.samples, recorded.quiet
        subject.visits.clock_mhz[:0] = recorded.clock_mhz
        new = self._record(subject)
        extra = {**old.extra, **new.extra, "revised_by": new.protocol}
        # How the first visits were taken stays on record; the later ones are named next to them.
        return replace(new, protocol=old.protocol, extra=extra)

    def _write_info(self) -> None:
        write_info(self.folder, protocols={self.rule.protocol_id: self.rule.describe(self.settings.threads)})


def _age_s(record: Record, now: datetime) -> float:
    try:
        return (now - datetime.fromisoformat(record.measured_at)).total_seconds()
    except ValueError:
        return float("-inf")
