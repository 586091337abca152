"""Graphs made by hand."""

from __future__ import annotations

from cdmpp.network.graph import Call, NetworkGraph
from cdmpp.programs.task import Task

KIB = 1024


def task(key: str, op_class: str = "dense", flops: float = 1e9, io_bytes: float = 1e6) -> Task:
    return Task(key, key, op_class, "", flops, io_bytes, {"mine": 1})


def graph_of_calls(*calls: Call, tasks: dict[str, Task] | None = None) -> NetworkGraph:
    tasks = tasks or {call.task_id: task(call.task_id) for call in calls}
    return NetworkGraph("mine", calls, tasks, 0, 0, 0, (len(calls) - 1,))


def call(place: int, *inputs: int, key: str = "t", written: int = 4 * KIB, resident=()) -> Call:
    return Call(f"{key}#{place}", key, inputs, written, tuple(resident))
