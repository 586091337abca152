"""Networks of the zoo -> the operators that PyTorch runs of them. A worker does it: exporters keep a gigabyte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cdmpp.errors import UnsupportedProgramError
from cdmpp.measure.torch_plan import CallLimits
from cdmpp.operators.aten import calls_of
from cdmpp.operators.operator import EagerOperator
from cdmpp.operators.operator_task import operator_task
from cdmpp.platform.workers import Reply, Request
from cdmpp.programs.task import Task


def import_operators(request: Request) -> Reply:
    """Import ``spec``, a zoo entry: ``operators``: ``[[JSON, calls], ...]``; ``unknown``: calls of no kind.

    Its weights are random, nothing is downloaded.
    """
    from cdmpp.programs.exported import export
    from cdmpp.programs.models import build_model

    exported = export(*build_model(request["spec"]), eager=True)
    found: Counter[EagerOperator] = Counter()
    unknown: Counter[str] = Counter()
    for node in exported.graph.nodes:
        if node.op == "call_function":
            try:
                found.update(calls_of(node).operators)
            except UnsupportedProgramError:
                unknown[str(node.target)] += 1
    return {"operators": [[one.to_json(), calls] for one, calls in found.items()], "unknown": dict(unknown)}


def network_tasks(
    operators: Sequence[Sequence[Any]], network: str, dtype: str, limits: CallLimits, origin: str
) -> list[Task]:
    """Make tasks of what ``import_operators`` found in ``network``, of ``dtype`` and within ``limits``."""
    calls: Counter[EagerOperator] = Counter()
    for text, number in operators:
        told = EagerOperator.from_json(text)
        calls[EagerOperator(told.name, told.sizes, dtype)] += number
    tasks = [(operator_task(one, origin=origin), number) for one, number in calls.items() if limits.allow(one)]
    return [replace(task, networks={network: number}) for task, number in tasks]
