"""Visit recorded programs again whose label is in doubt, and put the better label in its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cdmpp.data.records import read_records, read_tasks, replace_records, write_info
from cdmpp.data.schema import Record
from cdmpp.errors import DataError
from cdmpp.measure import protocol
from cdmpp.measure.build import arguments_of
from cdmpp.measure.collector import Subject
from cdmpp.measure.plan import Plan
from cdmpp.measure.protocol import Visits
from cdmpp.measure.repeats import Recorded
from cdmpp.measure.report import report
from cdmpp.measure.settings import CollectSettings
from cdmpp.measure.timing import FLAG_TYPES
from cdmpp.programs.task import Task

MAX_VISITS = 8
"""A record with more visits is left as it is: it does not settle."""
OTHER_INPUTS = ("cpu-v1", "cpu-v2", "cpu-v3")
"""Protocols under which flags among the inputs were not set."""


class Reviser(Recorded):
    """Times ``count`` programs of a data set folder again and merges the visits with those recorded.

    First those whose inputs were made in another way, whose old visits do not count; then the flagged ones, the
    widest spread first. A label stays the minimum over all visits, so it can only fall.

    Raises:
        DataError: no label of the device is in doubt.
    """

    def __init__(self, settings: CollectSettings, folder: Path, count: int) -> None:
        super().__init__(replace(settings, budget=None), folder)
        self.count = count
        self.failures = self.folder / "revision_failures.jsonl"

    def _recall(self) -> None:
        super()._recall()
        device = self.settings.device
        tasks = read_tasks(self.folder)
        self.stale = {task_id for task_id, task in tasks.items() if _has_flags(task)}
        records = read_records(self.folder, device)
        doubtful = [record for record in records if self._outdated(record) or _unsettled(record)]
        if not doubtful:
            raise DataError(f"{self.folder}: no label of {device} is in doubt, there is nothing to revise")
        doubtful.sort(key=lambda record: (not self._outdated(record), -record.spread, record.record_id))
        self.chosen = doubtful[: self.count]
        self.records = {record.record_id: record for record in self.chosen}
        self.recorded, self.failed = set(), set()

    def run(self) -> dict[str, Any]:
        """Revise; returns the report of the whole data set."""
        super().run()
        return report(self.folder, self.settings.device)

    def _keep(self, finished: list[Subject]) -> None:
        replace_records(self.folder, [self._merged(subject) for subject in finished])

    def _merged(self, subject: Subject) -> Record:
        old = self.records[subject.record_id]
        if self._outdated(old):
            return self._record(subject)
        recorded = visits_of(old)
        subject.visits.samples[:0], subject.visits.quiet[:0] = recorded.samples, recorded.quiet
        new = self._record(subject)
        extra = {**old.extra, **new.extra, "revised_by": new.protocol}
        # How the first visits were taken stays on record; the later ones are named beside.
        return replace(new, protocol=old.protocol, extra=extra)

    def _outdated(self, record: Record) -> bool:
        return record.task_id in self.stale and record.protocol in OTHER_INPUTS

    def _write_info(self, plan: Plan) -> None:
        used = {protocol.CPU.protocol_id: protocol.CPU.describe(self.settings.threads)}
        write_info(self.folder, protocols=used)


def visits_of(record: Record) -> Visits:
    """The visits that a record's samples came from.

    Raises:
        DataError: the record does not say how its samples fall into visits.
    """
    try:
        lengths = [int(n) for n in record.extra["samples_per_visit"].split(",")]
        quiet = [bool(int(q)) for q in record.extra["quiet_visits"].split(",")]
    except (KeyError, ValueError) as error:
        raise DataError(
            f"record {record.record_id} does not tell its visits apart ({error}): collect it anew"
        ) from error
    if sum(lengths) != len(record.latency_samples_s) or len(quiet) != len(lengths):
        raise DataError(f"record {record.record_id} names {sum(lengths)} samples, has {len(record.latency_samples_s)}")
    samples, start = [], 0
    for length in lengths:
        samples.append(record.latency_samples_s[start : start + length])
        start += length
    return Visits(samples, quiet)


def _has_flags(task: Task) -> bool:
    return any(dtype in FLAG_TYPES for _, dtype in arguments_of(task.workload))


def _unsettled(record: Record) -> bool:
    return record.flagged and len(visits_of(record).samples) < MAX_VISITS
