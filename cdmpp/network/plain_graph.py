"""Graphs of networks as plain values, as JSON has them, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdmpp.network.graph import Call, NetworkGraph
from cdmpp.programs.task import Task


def restored_graph(stored: Mapping[str, Any]) -> NetworkGraph:
    """Return the graph that ``dataclasses.asdict`` and JSON made plain.

    ``KeyError``, ``TypeError`` or ``ValueError``: it was none. Nothing of its content is checked.
    """
    calls = tuple(
        Call(
            **{
                **c,
                **{key: tuple(c[key]) for key in ("inputs", "held")},
                "resident": tuple((int(n), int(size)) for n, size in c["resident"]),
            }
        )
        for c in stored["calls"]
    )
    tasks = {key: Task(**task) for key, task in stored["tasks"].items()}
    return NetworkGraph(**{**stored, "calls": calls, "tasks": tasks, "results": tuple(stored["results"])})
