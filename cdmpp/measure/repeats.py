"""Measure recorded programs a second time, an hour or more later: the noise floor that no model can go below."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cdmpp.data.files import REPEATS_FILE, append_lines, read_lines
from cdmpp.data.records import read_records, read_tasks
from cdmpp.data.schema import Record
from cdmpp.errors import DataError
from cdmpp.measure.build import arguments_of
from cdmpp.measure.collector import Collector, Subject
from cdmpp.measure.plan import Plan
from cdmpp.measure.report import repeat_report
from cdmpp.measure.settings import CollectSettings

MIN_AGE_S = 3600.0
"""A record younger than this is not measured again: the machine may still be in the same state."""


class Recorded(Collector):
    """Times the ``chosen`` programs of a data set folder again, those in ``recorded`` left out."""

    chosen: list[Record]

    def _plan(self) -> Plan:
        return Plan([], [], read_tasks(self.folder))

    def _planned(self, plan: Plan, scratch: Path) -> Iterator[list[Subject]]:
        self._tasks_left = 0
        for record in self.chosen:
            key = record.record_id
            if key in self.recorded:
                continue
            task = plan.tasks[record.task_id]
            library = scratch / f"{key}.so"
            yield [Subject(key, arguments_of(task.workload), library, task=task, schedule=record.schedule)]

    def _expected_total(self) -> int:
        return len(self.chosen)


class Repeater(Recorded):
    """Times ``count`` programs of a data set folder again, by the same protocol, into ``repeats.jsonl`` beside them.

    Which ones is decided by a hash of their ids, so that a rerun goes on with the same list.

    Raises:
        DataError: the folder holds no record of the device that is old enough.
    """

    def __init__(self, settings: CollectSettings, folder: Path, count: int) -> None:
        super().__init__(replace(settings, budget=None), folder)
        self.count = count
        self.path = self.folder / REPEATS_FILE
        self.failures = self.folder / "repeat_failures.jsonl"

    def _recall(self) -> None:
        super()._recall()
        now = datetime.now(UTC)
        records = {record.record_id: record for record in read_records(self.folder, self.settings.device)}
        old = [r for r in records.values() if _age_s(r, now) >= MIN_AGE_S]
        if not old:
            raise DataError(
                f"{self.folder} holds no record of {self.settings.device} that is an hour old: nothing to repeat yet"
            )
        self.chosen = sorted(old, key=lambda r: hashlib.sha256(r.record_id.encode()).hexdigest())[: self.count]
        self.records = records
        self.recorded = {entry["record_id"] for entry in read_lines(self.path)}
        self.failed = set()

    def run(self) -> dict[str, Any]:
        """Measure what is not repeated yet; returns the deviations (see ``repeat_report``)."""
        super().run()
        return repeat_report(self.folder, self.settings.device)

    def _keep(self, finished: list[Subject]) -> None:
        append_lines(self.path, map(self._entry, finished))

    def _entry(self, subject: Subject) -> dict[str, Any]:
        again, first = self._record(subject), self.records[subject.record_id]
        return {
            "record_id": again.record_id,
            "device": again.device,
            "first_s": first.latency_s,
            "again_s": again.latency_s,
            "spread": again.spread,
            "hours_apart": round(_age_s(first, datetime.now(UTC)) / 3600, 2),
            "measured_at": again.measured_at,
            "protocol": again.protocol,
            "host": again.host,
        }

    def _write_info(self, plan: Plan) -> None:
        pass  # the data set itself does not change


def _age_s(record: Record, now: datetime) -> float:
    try:
        return (now - datetime.fromisoformat(record.measured_at)).total_seconds()
    except ValueError:
        return float("-inf")
