"""Measures operators of PyTorch's libraries: windows, visits and records are those of ``Collector``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from cdmpp import devices
from cdmpp.ast.layout import EAGER_FEATURES
from cdmpp.data.schema import Record
from cdmpp.errors import DataError
from cdmpp.measure import software
from cdmpp.measure.again import Repeater, Reviser
from cdmpp.measure.collector import Collector
from cdmpp.measure.plan import add_tasks, load_plan
from cdmpp.measure.protocol import Timed
from cdmpp.measure.reference_kernels import PREFIX
from cdmpp.measure.settings import MeasureSettings
from cdmpp.measure.subjects import IMPORT_LIMIT_S, Subject, Subjects
from cdmpp.measure.torch_networks import network_tasks
from cdmpp.measure.torch_plan import CallLimits, operator_plan
from cdmpp.measure.torch_protocol import torch_rule
from cdmpp.measure.worker import COMMAND
from cdmpp.operators.operator import EagerOperator
from cdmpp.operators.operator_task import operator_task, record_id, served_by
from cdmpp.platform.workers import Worker
from cdmpp.programs.task import Task

log = logging.getLogger(__name__)

ORIGIN = "torch"
NETWORK = "random_operators"
"""Name of the network that the tasks state as theirs: splits by network can name it."""
SCHEDULE = served_by("torch")
_REFERENCE_KERNELS = {
    "cpu": {"compute": ("bmm", "1x256x256x256"), "cache": ("relu", "64x1024"), "memory": ("mean", "16384x1024")},
    "gpu": {"compute": ("bmm", "1x2048x2048x2048"), "cache": ("add", "4096x1024"), "memory": ("mean", "65536x1024")},
}


class _OfTorch(Collector):
    """Base of collecting, repeating and revising operators. ``DataError``: the device is a GPU that is not here."""

    features = EAGER_FEATURES

    def __init__(self, settings: MeasureSettings, folder: Path, *more: Any) -> None:
        self.kind = devices.get(settings.device).kind
        self.place = "cpu" if self.kind == "cpu" else "cuda"
        if self.place == "cuda" and not torch.cuda.is_available():
            raise DataError(
                f"device {settings.device} is a GPU, and torch {torch.__version__} sees none here: install a torch for "
                "CUDA or ROCm on the machine that has it, and measure there"
            )
        self.rule = torch_rule(self.place)
        super().__init__(settings, folder, *more)
        if self.place == "cuda":
            self._host = f"{torch.cuda.get_device_name(0)}, {self._host}"

    def _measurers(self) -> list[Worker]:
        threads = self.settings.threads
        # Drivers of GPUs have threads of their own, which would wait for the host where all share one core.
        cores = self.cores[-threads:] if self.place == "cpu" else self.cores[1:] or self.cores
        return [Worker(COMMAND, cores, {"op": "ready_torch", "threads": threads, "device": self.place})]

    def _versions(self) -> str:
        return software.torch_versions()

    def _reference_kernels(self, scratch: Path) -> Sequence[Timed]:
        chosen = _REFERENCE_KERNELS["cpu" if self.place == "cpu" else "gpu"]
        return [
            _subject(PREFIX + name, operator_task(EagerOperator.parse(*operator)), scratch)
            for name, operator in chosen.items()
        ]

    def _build_clock(self, scratch: Path) -> str | None:
        return super()._build_clock(scratch) if self.place == "cpu" else None

    def _build(self, subjects: list[Subject]) -> list[Subject]:
        return subjects

    def _subject(self, record: Record, scratch: Path) -> Subject:
        return _subject(record.record_id, self.tasks[record.task_id], scratch)  # type: ignore[attr-defined]

    def _timing(self, item: Timed) -> dict[str, Any]:
        assert isinstance(item, Subject)
        return {"op": "time_torch", "operator": item.task.op_name, "device": self.place, "clock": self._clock}


class TorchCollector(_OfTorch):
    """A collector writes records of operators into ``folder``; their compact ASTs are made where they are read.

    Those of the wanted networks come first, random ones behind; or only the given ``operators``.
    """

    def __init__(self, settings: MeasureSettings, folder: Path, operators: Sequence[EagerOperator] = ()) -> None:
        super().__init__(settings, folder)
        self.operators = tuple(operators)

    def _subjects(self, scratch: Path) -> Subjects:
        settings = self.settings
        self.limits = CallLimits.of(devices.get(settings.device), settings.call_ms, settings.call_mb)
        operators = self.operators or operator_plan(self.limits, settings.operators, settings.seed, settings.dtype)
        random = [operator_task(operator, NETWORK, ORIGIN) for operator in operators]
        add_tasks(self.folder, random)
        if settings.networks:  # what was not begun makes way for those of networks that join, and comes in again
            load_plan(self.folder, settings.device_networks(), settings.seed, self._import, self.journal.per_task)
            add_tasks(self.folder, random)
        plan = load_plan(self.folder, {}, settings.seed, self._import)
        subjects = [_subject(self._record_id(key), plan.tasks[key], scratch) for key in plan.order]
        planned = Subjects(subject for subject in subjects if subject.record_id not in self.journal)
        names = [*plan.networks, NETWORK]
        planned.info = {"networks": names, "planned_tasks": len(plan.order), "features": self.features}
        return planned

    def _import(self, name: str, spec: Mapping[str, Any]) -> list[Task] | None:
        worker = self.measurers[0]
        reply = worker.request({"op": "import_operators", "device": "cpu", "spec": dict(spec)}, IMPORT_LIMIT_S)
        worker.stop()  # it would keep the network
        if "cause" in reply:
            self.journal.fail(f"network:{name}", "", reply)
            return None
        if unknown := reply["unknown"]:
            log.warning(
                "%s: %d calls are of no kind that is known: %s", name, sum(unknown.values()), ", ".join(unknown)
            )
        return network_tasks(reply["operators"], name, self.settings.dtype, self.limits, ORIGIN)

    def _record_id(self, task_id: str) -> str:
        return record_id(task_id, self.settings.device, self.target, SCHEDULE)


class TorchRepeater(_OfTorch, Repeater):
    """This ``Repeater`` times operators."""


class TorchReviser(_OfTorch, Reviser):
    """This ``Reviser`` times operators."""


def _operator(subject: Subject) -> EagerOperator:
    return EagerOperator.from_json(subject.task.op_name)


def _subject(key: str, task: Task, scratch: Path) -> Subject:
    """Without a library of its own: PyTorch has it."""
    return Subject(key, [], scratch / key, task=task, schedule=SCHEDULE)
