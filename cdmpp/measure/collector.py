"""The measuring loop: plan -> sample -> build -> measure in windows -> records. Stop it anywhere and run it again.

Nothing is built while a window is open.
"""

from __future__ import annotations

import collections
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cdmpp.data.files import FAILURES_FILE, append_lines, read_lines
from cdmpp.data.records import append_records, read_records, write_info
from cdmpp.data.schema import Record
from cdmpp.lock import writing
from cdmpp.measure import protocol, software
from cdmpp.measure.build import arguments_of
from cdmpp.measure.isolation import Reply, Worker, run_many
from cdmpp.measure.plan import Plan, copy_plan, load_plan, schedule_seed
from cdmpp.measure.progress import CollectionProgress
from cdmpp.measure.remote import ATTEMPTS, SESSION_LIMIT_S
from cdmpp.measure.report import report
from cdmpp.measure.sentinel import Sentinels
from cdmpp.measure.settings import CollectSettings
from cdmpp.measure.window import Timed, Windows
from cdmpp.programs.task import Task

IMPORT_LIMIT_S = 900.0
SAMPLE_LIMIT_S = 240.0


@dataclass(kw_only=True)
class Subject(Timed):
    """A program on its way to becoming a record."""

    task: Task
    schedule: str


class Collector:
    """Collects records of one device into ``folder``."""

    def __init__(self, settings: CollectSettings, folder: Path) -> None:
        self.settings = settings
        self.folder = Path(folder)
        self.target = json.dumps(dict(settings.target), sort_keys=True)
        self.failures = self.folder / FAILURES_FILE
        self.cores = cores = sorted(os.sched_getaffinity(0))
        if settings.rpc is None:
            self.measurers = [Worker(cores[-settings.threads :])]
        else:  # the children only hold sessions and need no core of their own
            self.measurers = [Worker() for _ in range(settings.rpc.servers)]
        self.builders = [Worker([cores[i % len(cores)]]) for i in range(settings.builders)]
        self.sentinels = Sentinels(self.measurers[0], self.folder / "sentinels.jsonl", self._timing)
        limit_s = protocol.VISIT_LIMIT_S if settings.rpc is None else ATTEMPTS * SESSION_LIMIT_S
        self.windows: Windows[Subject] = Windows(
            self.measurers, self.sentinels, self._timing, limit_s, settings.min_separation_s
        )
        self.samples = self.folder / "samples.jsonl"
        self.recorded: set[str] = set()
        self.failed: set[str] = set()
        self.causes: collections.Counter[str] = collections.Counter()
        self._software = software.versions()
        self._host = software.host() if settings.rpc is None else f"rpc:{settings.rpc.key}"
        self._sampled_tasks = self._sampled_programs = 0
        self._recorded_there: dict[str, list[str]] = {}

    def run(self) -> dict[str, Any]:
        """Collect until the plan or the budget is used up; returns the report (see ``report``).

        Raises:
            CdmppError: another process writes to the folder: two collections at once would spoil each other's times.
        """
        with writing(self.folder, f"measuring of {self.settings.device}"):
            self._recall()
            self._collect()
            return report(self.folder, self.settings.device)

    def _recall(self) -> None:
        """What the folder holds already; read while nobody else can write there."""
        records = read_records(self.folder, self.settings.device)
        self.recorded = {record.record_id for record in records}
        self._per_task = collections.Counter(record.task_id for record in records)
        self.failed = set(self._failed_ids())
        self._known_samples: dict[tuple[str, int], tuple[int, int]] = {}
        """(task, seed) -> (schedules asked for, programs they gave), of the largest sample so far."""
        for task_id, asked, seed, programs in (entry for entry in read_lines(self.samples) if len(entry) == 4):
            known = self._known_samples.get((task_id, seed), (0, 0))
            self._known_samples[task_id, seed] = max(known, (asked, programs))

    def _collect(self) -> None:
        progress = CollectionProgress(
            self.folder, len(self.recorded), self.settings.phase_file, self.settings.show_progress
        )
        start = time.monotonic()
        limit = self.settings.time_limit_s
        # Leave the measuring core alone, where there is more than one.
        if self.settings.rpc is None and self.settings.kit is None:
            os.sched_setaffinity(0, {self.cores[0]})
        with progress, tempfile.TemporaryDirectory(prefix="cdmpp-measure-") as scratch:
            self.progress = progress
            try:
                progress.enter("sample")
                plan = self._plan()
                self._write_info(plan)
                self._sentinels(Path(scratch))
                source = self._planned(plan, Path(scratch))
                while True:
                    late = limit is not None and time.monotonic() - start > limit
                    fresh = [] if late else self._next_batch(source)
                    progress.enter("build")
                    fresh = self._build(fresh)
                    if not fresh and not self.windows.active:
                        self._finish()
                        break
                    self._window(fresh)
                    self._write_info(plan)
            finally:
                for worker in (*self.measurers, *self.builders):
                    worker.stop()
                os.sched_setaffinity(0, set(self.cores))

    def _plan(self) -> Plan:
        settings = self.settings
        source = settings.schedules_from or settings.tasks_from
        if source is not None:
            return copy_plan(self.folder, source, settings.seed)
        return load_plan(self.folder, settings.zoo, settings.seed, self._import, self._per_task)

    def _sentinels(self, scratch: Path) -> None:
        self.sentinels.build(self.builders[0], self.settings.target, scratch)

    def _finish(self) -> None:
        """Called when nothing is left to do."""

    # -- before a window ----------------------------------------------------------------------------------------

    def _import(self, name: str, spec: Mapping[str, Any]) -> list[Task] | None:
        # A fresh process each: an imported network keeps a gigabyte.
        worker = self.builders[0]
        reply = worker.request({"op": "import", "network": name, "spec": dict(spec)}, IMPORT_LIMIT_S)
        worker.stop()
        if "cause" in reply:
            self._fail(f"network:{name}", "", reply)
            return None
        return [Task(**fields) for fields in reply["tasks"]]

    def _planned(self, plan: Plan, scratch: Path) -> Iterator[list[Subject]]:
        """Unrecorded programs, a few tasks at a time."""
        planned = [plan.tasks[task_id] for task_id in plan.order]
        tasks = [task for task in planned if task.flops <= self.settings.max_task_flops]
        self._tasks_left = len(tasks)
        chunk = max(1, min(4 * len(self.builders), self.settings.batch // self.settings.schedules_per_task))
        from cdmpp.programs.identity import record_id

        tasks = [task for task in tasks if not self._finished(task)]
        for begin in range(0, len(tasks), chunk):
            members = tasks[begin : begin + chunk]
            replies = self._schedules(members)
            subjects: list[Subject] = []
            for index, task in enumerate(members):
                self._tasks_left -= 1
                reply = replies[index]
                if "cause" in reply:
                    self._fail(f"task:{task.task_id}", task.task_id, reply)
                    continue
                self._sampled_tasks += 1
                self._sampled_programs += len(reply["schedules"])
                self._remember(task, len(reply["schedules"]))
                for schedule in reply["schedules"]:
                    key = record_id(task.task_id, self.settings.device, self.target, schedule)
                    if key not in self.recorded and key not in self.failed:
                        library = scratch / f"{key}.so"
                        subjects.append(Subject(key, reply["arguments"], library, task=task, schedule=schedule))
            yield subjects

    def _schedules(self, tasks: list[Task]) -> dict[int, Reply]:
        """Index -> ``schedules`` and ``arguments`` of each task: sampled, or those that another device ran."""
        source = self.settings.schedules_from
        if source is None:
            messages = [self._sample_request(task) for task in tasks]
            return dict(run_many(self.builders, messages, SAMPLE_LIMIT_S))
        if not self._recorded_there:
            for record in read_records(source):
                self._recorded_there.setdefault(record.task_id, []).append(record.schedule)
        limit = self.settings.schedules_per_task
        return {
            index: {
                "schedules": list(dict.fromkeys(self._recorded_there[task.task_id]))[:limit],
                "arguments": arguments_of(task.workload),
            }
            for index, task in enumerate(tasks)
        }

    def _finished(self, task: Task) -> bool:
        """True where every program sampled for ``task`` has a record or a failure: no need to sample it again."""
        asked, n = self._known_samples.get((task.task_id, self.settings.seed), (0, 0))
        finished = asked >= self.settings.schedules_per_task and self._per_task[task.task_id] >= n
        if finished:
            self._tasks_left -= 1
            self._sampled_tasks += 1
            self._sampled_programs += n
        return finished

    def _remember(self, task: Task, programs: int) -> None:
        entry = [task.task_id, self.settings.schedules_per_task, self.settings.seed, programs]
        append_lines(self.samples, [entry])

    def _sample_request(self, task: Task) -> dict[str, Any]:
        return {
            "op": "sample",
            "task": {"workload": task.workload, **{k: getattr(task, k) for k in _TASK_FIELDS}},
            "target": dict(self.settings.target),
            "n": self.settings.schedules_per_task,
            "seed": schedule_seed(task.task_id, self.settings.seed),
        }

    def _next_batch(self, source: Iterator[list[Subject]]) -> list[Subject]:
        self.progress.enter("sample")
        batch: list[Subject] = []
        room = self.settings.batch
        if self.settings.budget is not None:
            room = min(room, self.settings.budget - len(self.recorded) - len(self.windows.active))
        while len(batch) < room:
            subjects = next(source, None)
            if subjects is None:
                break
            batch.extend(subjects)
        # A task is not torn apart at the edge of a batch; only the budget cuts one.
        return batch if self.settings.budget is None or room >= self.settings.batch else batch[: max(room, 0)]

    def _build(self, subjects: list[Subject]) -> list[Subject]:
        messages = [self._build_request(subject) for subject in subjects]
        built = set()
        for index, reply in run_many(self.builders, messages, protocol.BUILD_LIMIT_S):
            if "cause" in reply:
                if reply["cause"] in ("crash", "timeout"):
                    reply["cause"] = "build " + reply["cause"]
                self._fail(subjects[index].record_id, subjects[index].task.task_id, reply)
            else:
                built.add(index)
        return [subject for index, subject in enumerate(subjects) if index in built]

    def _build_request(self, subject: Subject) -> dict[str, Any]:
        return {
            "op": "build",
            "workload": subject.task.workload,
            "schedule": subject.schedule,
            "target": dict(self.settings.target),
            "path": str(subject.library),
        }

    # -- the window ---------------------------------------------------------------------------------------------

    def _window(self, fresh: list[Subject]) -> None:
        for worker in self.measurers:
            worker.start()
        self.progress.enter("measure")
        finished = self.windows.measure(fresh, self._cannot_be_timed)
        self._keep(finished)
        self.recorded.update(subject.record_id for subject in finished)
        for subject in finished:
            subject.library.unlink(missing_ok=True)
        self.progress.update(len(self.recorded), self._expected_total())

    def _cannot_be_timed(self, subject: Subject, reply: Reply) -> None:
        self._fail(subject.record_id, subject.task.task_id, reply)
        subject.library.unlink(missing_ok=True)

    def _timing(self, path: str, arguments: list[Any]) -> dict[str, Any]:
        """Request for one visit."""
        message = {"op": "time", "path": path, "arguments": arguments}
        rpc = self.settings.rpc
        return message if rpc is None else {**message, "op": "time_rpc", "tracker": rpc.tracker, "key": rpc.key}

    # -- bookkeeping --------------------------------------------------------------------------------------------

    def _keep(self, finished: list[Subject]) -> None:
        append_records(self.folder, [self._record(subject) for subject in finished])

    def _record(self, subject: Subject) -> Record:
        visits = subject.visits
        return Record(
            record_id=subject.record_id,
            task_id=subject.task.task_id,
            device=self.settings.device,
            target=self.target,
            schedule=subject.schedule,
            latency_samples_s=tuple(value for visit in visits.samples for value in visit),
            latency_s=visits.label,
            statistic="min",
            latency_min_s=visits.label,
            latency_median_s=visits.median,
            spread=visits.spread,
            flagged=visits.flagged,
            protocol=protocol.CPU.protocol_id,
            software=self._software,
            host=self._host,
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
            extra={
                "samples_per_visit": ",".join(str(len(visit)) for visit in visits.samples),
                "quiet_visits": ",".join(str(int(quiet)) for quiet in visits.quiet),
            },
        )

    def _fail(self, key: str, task_id: str, reply: Reply) -> None:
        self.causes[reply["cause"]] += 1
        self.failed.add(key)
        append_lines(self.failures, [{"id": key, "task_id": task_id, "device": self.settings.device, **reply}])

    def _failed_ids(self) -> Iterator[str]:
        for entry in read_lines(self.failures):
            if entry.get("device") == self.settings.device and ":" not in entry["id"]:
                self._per_task[entry["task_id"]] += 1
                yield entry["id"]

    def _expected_total(self) -> int:
        mean = self._sampled_programs / max(self._sampled_tasks, 1)
        total = len(self.recorded) + len(self.windows.active) + int(self._tasks_left * mean)
        return total if self.settings.budget is None else min(total, max(self.settings.budget, len(self.recorded)))

    def _write_info(self, plan: Plan) -> None:
        write_info(
            self.folder,
            name=self.folder.name,
            devices=[self.settings.device],
            protocols={protocol.CPU.protocol_id: protocol.CPU.describe(self.settings.threads)},
            host=self._host,
            software=json.loads(self._software),
            networks=plan.networks,
            programs=len(self.recorded),
            planned_tasks=len(plan.order),
        )


_TASK_FIELDS = ("task_id", "op_name", "op_class", "flops", "io_bytes", "networks", "origin")
