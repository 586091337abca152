"""Programs on their way to becoming records: sampled from a plan, or given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cdmpp.data.records import read_records
from cdmpp.errors import DataError
from cdmpp.measure.build import arguments_of
from cdmpp.measure.journal import Journal
from cdmpp.measure.plan import Plan, copy_plan, load_plan, schedule_seed
from cdmpp.measure.protocol import Timed
from cdmpp.measure.settings import MeasureSettings
from cdmpp.platform.files import append_lines, read_lines
from cdmpp.platform.workers import Reply, Worker, run_many
from cdmpp.programs.task import Task

UNTUNED = "untuned"
"""Value of ``MeasureSettings.programs`` for programs without a schedule."""
IMPORT_LIMIT_S = 900.0
SAMPLE_LIMIT_S = 240.0
_MAX_TASK_FLOPS = {"cpu": 4e9, "gpu": 4e11}
"""Heavier tasks are left out: their random schedules run for seconds."""


@dataclass(kw_only=True)
class Subject(Timed):
    """A subject is a program on its way to becoming a record."""

    task: Task
    schedule: str

    @staticmethod
    def of(record_id: str, task: Task, schedule: str, scratch: Path) -> Subject:
        """Make a subject whose library will lie in ``scratch``."""
        library = scratch / f"{record_id}.so"
        return Subject(record_id, arguments_of(task.workload), library, task=task, schedule=schedule)


class Subjects:
    """The caller gives programs; iterating yields them in groups that stay together."""

    def __init__(self, subjects: Iterable[Subject]) -> None:
        self.subjects = list(subjects)
        self.expected = len(self.subjects)
        """Programs still to come, as far as is known."""
        self.info: dict[str, Any] = {}
        """Facts about them for ``dataset.json``."""

    def __iter__(self) -> Iterator[list[Subject]]:
        for subject in self.subjects:
            self.expected -= 1
            yield [subject]


class PlannedSubjects(Subjects):
    """These are programs of a folder's plan that its journal does not hold, sampled a few tasks at a time."""

    def __init__(
        self, settings: MeasureSettings, folder: Path, target: str, journal: Journal, builders: Sequence[Worker],
        scratch: Path,
    ) -> None:  # fmt: skip
        """``target``: JSON of the TVM target, part of the record ids; libraries will lie in ``scratch``."""
        super().__init__(())
        self.settings, self.target, self.journal, self.builders = settings, target, journal, builders
        self.scratch = scratch
        self.samples = folder / "samples.jsonl"
        plan = self._plan(folder)
        limit = _MAX_TASK_FLOPS["cpu" if settings.target["kind"] == "llvm" else "gpu"]
        self.tasks = [task for key in plan.order if (task := plan.tasks[key]).flops <= limit]
        self.info = {"networks": plan.networks, "planned_tasks": len(plan.order)}
        self._programs: list[int] = []  # of each task so far

    def _plan(self, folder: Path) -> Plan:
        source = self.settings.schedules_from or self.settings.tasks_from
        if source is not None:
            return copy_plan(folder, source, self.settings.seed)
        networks = self.settings.device_networks()
        return load_plan(folder, networks, self.settings.seed, self._import, self.journal.per_task)

    def _import(self, name: str, spec: Mapping[str, Any]) -> list[Task] | None:
        # A fresh process each: an imported network keeps a gigabyte.
        worker = self.builders[0]
        reply = worker.request({"op": "import", "network": name, "spec": dict(spec)}, IMPORT_LIMIT_S)
        worker.stop()
        if "cause" in reply:
            self.journal.fail(f"network:{name}", "", reply)
            return None
        return [Task(**fields) for fields in reply["tasks"]]

    def __iter__(self) -> Iterator[list[Subject]]:
        from cdmpp.programs.identity import record_id

        chunk = max(1, min(4 * len(self.builders), self.settings.batch // self.settings.schedules_per_task))
        tasks = self._unfinished()
        for begin in range(0, len(tasks), chunk):
            members = tasks[begin : begin + chunk]
            subjects: list[Subject] = []
            for task, reply in zip(members, self._schedules(members), strict=True):
                self._count(len(reply.get("schedules", ())))
                if "cause" in reply:
                    self.journal.fail(f"task:{task.task_id}", task.task_id, reply)
                    continue
                if self._given is None:
                    asked = [self.settings.schedules_per_task, self.settings.seed]
                    append_lines(self.samples, [[task.task_id, *asked, len(reply["schedules"])]])
                for schedule in reply["schedules"]:
                    key = record_id(task.task_id, self.settings.device, self.target, schedule)
                    if key not in self.journal:
                        subjects.append(Subject.of(key, task, schedule, self.scratch))
            yield subjects

    def _count(self, programs: int) -> None:
        """One more task is sampled: the mean says how many programs the tasks left will give."""
        self._programs.append(programs)
        self.expected = (len(self.tasks) - len(self._programs)) * sum(self._programs) // len(self._programs)

    def _unfinished(self) -> list[Task]:
        """Tasks of which a program may lack a record: the others need not be sampled again."""
        if self._given is not None:
            return [task for task in self.tasks if task.task_id in self._given]
        largest: dict[str, tuple[int, int]] = {}  # task -> (schedules asked for, programs)
        for task_id, asked, seed, programs in read_lines(self.samples):
            if seed == self.settings.seed:
                largest[task_id] = max(largest.get(task_id, (0, 0)), (asked, programs))
        tasks = []
        for task in self.tasks:
            asked, programs = largest.get(task.task_id, (0, 0))
            if asked >= self.settings.schedules_per_task and self.journal.per_task[task.task_id] >= programs:
                self._count(programs)
            else:
                tasks.append(task)
        return tasks

    def given(self, task: Task) -> list[str] | None:
        """Return the very schedules that are asked for of ``task``, which may be none; None: they are sampled."""
        if self._given is not None:
            return self._given.get(task.task_id, [])
        if self.settings.schedules_from is not None:
            return self._recorded[task.task_id][: self.settings.schedules_per_task]
        return None

    def _schedules(self, tasks: list[Task]) -> list[Reply]:
        """``schedules`` of each task: sampled, or those that another device ran."""
        if self._given is not None or self.settings.schedules_from is not None:
            return [{"schedules": self.given(task)} for task in tasks]
        limit = self.settings.schedules_per_task
        seeds = [schedule_seed(task.task_id, self.settings.seed) for task in tasks]
        asked = {"op": "sample", "target": self.settings.target, "n": limit}
        requests = [{**asked, "task": asdict(task), "seed": seed} for task, seed in zip(tasks, seeds, strict=True)]
        replies = dict(run_many(self.builders, requests, SAMPLE_LIMIT_S))
        return [replies[index] for index in range(len(tasks))]

    @cached_property
    def _given(self) -> dict[str, list[str]] | None:
        """Task -> the very schedules of ``programs``; None: they are sampled or another device's."""
        if self.settings.programs is None:
            return None
        if self.settings.programs == UNTUNED:
            from cdmpp.programs.sampling import NO_SCHEDULE

            return {task.task_id: [NO_SCHEDULE] for task in self.tasks}
        if not (path := Path(self.settings.programs)).is_file():
            raise DataError(f"programs={path}: no such file; give {UNTUNED}, or JSON lines [task id, schedule]")
        given: dict[str, dict[str, None]] = {}
        for line in read_lines(path):
            match line:
                case [str() as task_id, str() as schedule]:
                    given.setdefault(task_id, {})[schedule] = None
                case _:
                    raise DataError(f"{path} holds {str(line)[:60]!r}: each line is [task id, schedule]")
        return {task_id: list(distinct) for task_id, distinct in given.items()}

    @cached_property
    def _recorded(self) -> dict[str, list[str]]:
        """Task -> distinct schedules in the records of ``schedules_from``."""
        schedules: dict[str, dict[str, None]] = {}
        assert self.settings.schedules_from is not None
        for record in read_records(self.settings.schedules_from):
            schedules.setdefault(record.task_id, {})[record.schedule] = None
        return {task_id: list(distinct) for task_id, distinct in schedules.items()}
