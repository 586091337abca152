"""Graphs of networks that were read before, kept in the cache: a second question needs no import."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from cdmpp.errors import DataError
from cdmpp.network.graph import Call, NetworkGraph, check_runs, graph_of
from cdmpp.network.network_key import digest, name_key, surroundings
from cdmpp.network.precision import precision_of
from cdmpp.network.runtime import ReadNetwork
from cdmpp.network.source.read import NetworkSource, read_network
from cdmpp.network.source.torch_network import positional
from cdmpp.network.workload import Workload
from cdmpp.platform.files import read_json, write_json
from cdmpp.platform.paths import cache_root
from cdmpp.programs.compiled import TVM, compiled_flag, compiled_noted
from cdmpp.programs.exported import export
from cdmpp.programs.task import Task

_VERSION = "3"
"""Goes up when the same network gives another graph."""


@dataclass(frozen=True, kw_only=True)
class CompiledNetwork(ReadNetwork):
    """This is a network as TVM compiles it, and the way to the rest of it."""

    source: Callable[[], NetworkSource]
    """The Relax module and the torch model; reads them where only the graph was kept."""


def graph_for(workload: Workload, before_reading: Callable[[], None] = lambda: None) -> CompiledNetwork:
    """Read a network as ``read_network``, or from the cache if one of that name, file or computation was read.

    ``before_reading`` is called where it was not.
    """
    network, example = workload.network, workload.example_inputs
    exported, warnings = (None, ()) if example is None else _exported(network, example)

    def read() -> NetworkSource:
        return read_network(workload, exported)

    shapes = {name: list(shape) for name, shape in (workload.inputs or {}).items()}
    settings = [workload.batch, shapes, precision_of(workload.precision).compiled_dtype, type(network).__name__]
    content = name_key(network) if example is None else _computed(exported)
    key = None if content is None else digest([content, settings, surroundings()])
    path = cache_root() / "networks" / f"v{_VERSION}" / f"{key}.json"
    try:
        stored = read_json(path) if key else {}
        graph, batch = _restored(stored["graph"]), int(stored["batch"])
        return CompiledNetwork(graph=graph, batch=batch, warnings=warnings, source=cache(read))
    except (DataError, KeyError, TypeError, ValueError):  # not there, or damaged: made again
        before_reading()
    source = read()
    graph = _graph(source)
    if key:
        write_json(path, {"graph": dataclasses.asdict(graph), "batch": source.batch})
    return CompiledNetwork(graph=graph, batch=source.batch, warnings=warnings or source.warnings, source=lambda: source)


def _graph(source: NetworkSource) -> NetworkGraph:
    graph = graph_of(source.module, source.name)
    check_runs(graph)
    return graph


def _exported(network: Any, example_inputs: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the export of a torch module, and what it says; nothing for other networks."""
    import torch

    if not isinstance(network, torch.nn.Module):
        return None, ()
    with compiled_noted() as compiled:
        return export(*positional(network.eval(), example_inputs)), compiled_flag(compiled, TVM)


def _computed(exported: Any) -> list[Any] | None:
    """Return the computation of a torch module, whatever its weights."""
    if exported is None:
        return None
    places = [node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"]
    kinds = [[list(map(str, getattr(value, "shape", ()))), str(getattr(value, "dtype", value))] for value in places]
    return [exported.graph_module.code, kinds]


def _restored(stored: Mapping[str, Any]) -> NetworkGraph:
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
