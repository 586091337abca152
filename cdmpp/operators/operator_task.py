"""Framework operators as tasks: the tensor program that they stand for, by its text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache

from cdmpp.ast.layout import EAGER_FEATURES
from cdmpp.operators.loop_script import script
from cdmpp.operators.operator import LEARNED, EagerOperator
from cdmpp.operators.template import loop_program
from cdmpp.programs.task import Task


def operator_task(operator: EagerOperator, network: str = "", origin: str = EAGER_FEATURES) -> Task:
    """Return the task of an operator, with one call site in ``network``."""
    networks = {network: 1} if network else {}
    kind, work = operator.kind.op_class, (operator.flops, operator.io_bytes)
    return Task(task_id(operator), operator.to_json(), kind, _text(operator), *work, networks, origin)


class OperatorTasks(Mapping[str, Task]):
    """The tasks of operators by their ids; each is made when it is first asked for, since its text takes time."""

    def __init__(self, operators: Mapping[str, EagerOperator], network: str) -> None:
        """Make no task yet. ``operators``: task id -> operator, also of those that are added later."""
        self._operators, self._network = operators, network
        self._made = dict[str, Task]()

    def __getitem__(self, key: str) -> Task:
        """Return the task of an id."""
        if key not in self._made:
            self._made[key] = operator_task(self._operators[key], self._network)
        return self._made[key]

    def __iter__(self) -> Iterator[str]:
        """Go through the ids, in the order of the operators."""
        return iter(self._operators)

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self._operators)


@lru_cache(maxsize=4096)
def _text(operator: EagerOperator) -> str:
    if operator.name not in LEARNED:
        return f"# {operator}: one kernel of a library, which no loops describe\n"
    return script(loop_program(operator))


@lru_cache(maxsize=32_768)
def task_id(operator: EagerOperator) -> str:
    """Return 16 hex digits, the same for the same call whatever device or runtime runs it."""
    return hashlib.sha256(f"operator:{operator.to_json()}".encode()).hexdigest()[:16]


def served_by(runtime: str) -> str:
    """Return the text that stands in place of a scheduled program's trace: the runtime, which chooses the kernel."""
    return json.dumps({"runtime": runtime})


def record_id(task: str, device: str, target: str, schedule: str) -> str:
    """Return 16 hex digits for what is served for ``task`` (its id) on a device with that target (JSON)."""
    return hashlib.sha256("\n".join((task, device, target, schedule)).encode()).hexdigest()[:16]
