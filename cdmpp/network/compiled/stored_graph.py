"""Graphs of networks that were read before, kept in the cache: a second question needs no import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError, UsageError
from cdmpp.network.graph import Call, NetworkGraph, check_runs, graph_of
from cdmpp.network.network_key import digest, name_key, surroundings
from cdmpp.network.plain_graph import restored_graph
from cdmpp.network.precision import precision_of
from cdmpp.network.runtime import ReadNetwork
from cdmpp.network.source.read import NetworkSource, read_network
from cdmpp.network.source.torch_network import positional
from cdmpp.network.source.trained_model import modes_kept
from cdmpp.network.workload import Workload
from cdmpp.platform.cache import cached_json, keep_json
from cdmpp.platform.limits import Limits, fitting, numbers, shown
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
        with modes_kept(network):
            return read_network(workload, exported)

    content = name_key(network) if example is None else _computed(exported)
    path = None if content is None else graph_path(workload, content)
    try:
        stored = cached_json(path) if path else {}
        graph, batch = restored_graph(stored["graph"]), int(stored["batch"])
        return CompiledNetwork(graph=graph, batch=batch, warnings=warnings, source=cache(read))
    except (DataError, KeyError, TypeError, ValueError):  # not there, or damaged: made again
        before_reading()
    source = read()
    graph = _graph(source)
    if path:
        keep_json(path, {"graph": asdict(graph), "batch": source.batch})
    return CompiledNetwork(graph=graph, batch=source.batch, warnings=warnings or source.warnings, source=lambda: source)


def graph_path(workload: Workload, content: Any) -> Path:
    """Return the place of a graph in the cache; ``content`` says the network, as ``name_key`` does."""
    shapes = {name: list(shape) for name, shape in (workload.inputs or {}).items()}
    network, dtype = workload.network, precision_of(workload.precision).compiled_dtype
    settings = [workload.batch, shapes, dtype, type(network).__name__]
    key = digest([content, settings, surroundings(network)])
    return cache_root() / "networks" / f"v{_VERSION}" / f"{key}.json"


def network_of_graph(stored: Mapping[str, Any], batch: int) -> CompiledNetwork:
    """Read a graph that somebody else stored, as the cache has it; its programs go through the gate once they are used.

    ``DataError`` names the field that no graph has, or the call that is not after those that it reads.
    """
    try:
        graph = restored_graph(stored)
        _check(graph)
    except UsageError as error:
        raise DataError(f"a stored graph: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"a stored graph cannot be read: {type(error).__name__}: {str(error)[:200]}") from error
    check_runs(graph)
    return CompiledNetwork(graph=graph, batch=batch, source=_no_source)


_BYTES, _LONGEST = Limits(0, 2**53), 500
_COUNTED = ("output_bytes", "workspace_bytes")
_MAY_BE_UNKNOWN = ("saved_bytes", "result_bytes", "own_saved_bytes", "gradient_bytes")
_MOST_CALLS = Limits(0, 10**6, "calls")


def _check(graph: NetworkGraph) -> None:
    """Raise ``UsageError`` for what no graph has."""
    _check_word("name", graph.name)
    for name in ("folded", "weight_bytes", "input_bytes", "views"):
        _BYTES.fitting(name, getattr(graph, name))
    _MOST_CALLS.fitting("their number", len(graph.calls))
    for key, task in graph.tasks.items():
        _check_task(key, task)
    for place, call in enumerate(graph.calls):
        _check_call(f"calls[{place}]", place, call, graph)
    if len({call.name for call in graph.calls}) < len(graph.calls):
        raise UsageError("two calls have one name")
    for result in graph.results:
        Limits(0, len(graph.calls) - 1).fitting("results", result)


def _check_call(where: str, place: int, call: Call, graph: NetworkGraph) -> None:
    _check_word(f"{where}.name", call.name)
    if call.task_id not in graph.tasks:
        raise UsageError(f"{where}.task_id is {shown(call.task_id)}, which is not among the tasks")
    for name in (*_COUNTED, *_MAY_BE_UNKNOWN):
        if (value := getattr(call, name)) is not None or name in _COUNTED:
            _BYTES.fitting(f"{where}.{name}", value)
    for before in (*call.inputs, *call.held, *(() if call.forward is None else (call.forward,))):
        Limits(0, place - 1).fitting(f"{where}, a place of a call before it,", before)
    for number, size in call.resident:
        _BYTES.fitting(f"{where}.resident", number)
        _BYTES.fitting(f"{where}.resident", size)
    fitting(f"{where}.is_joined", call.is_joined, bool)


def _check_task(key: str, task: Task) -> None:
    _check_word("a key of tasks", key)
    for name in ("task_id", "op_name", "op_class"):
        _check_word(f"tasks.{name}", getattr(task, name))
    if task.task_id != key or not isinstance(task.workload, str):
        raise UsageError(f"tasks[{key}]: its task_id is {shown(task.task_id)}, and its workload is a text")
    for name in ("flops", "io_bytes"):
        numbers(0, 1e30).fitting(f"tasks[{key}].{name}", getattr(task, name))


def _check_word(name: str, value: Any) -> None:
    if len(fitting(name, value, str)) > _LONGEST:
        raise UsageError(f"{name} is {shown(value)}: expected at most {_LONGEST} letters")


def _no_source() -> NetworkSource:
    raise DataError("a stored graph is no module that could be run here: it is predicted only")


def _graph(source: NetworkSource) -> NetworkGraph:
    graph = graph_of(source.module, source.name)
    check_runs(graph)
    return graph


def _exported(network: Any, example_inputs: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the export of a torch module, and what it says; nothing for other networks."""
    import torch

    if not isinstance(network, torch.nn.Module):
        return None, ()
    with modes_kept(network), compiled_noted() as compiled:
        return export(*positional(network.eval(), example_inputs)), compiled_flag(compiled, TVM)


def _computed(exported: Any) -> list[Any] | None:
    """Return the computation of a torch module, whatever its weights."""
    if exported is None:
        return None
    places = [node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"]
    kinds = [[list(map(str, getattr(value, "shape", ()))), str(getattr(value, "dtype", value))] for value in places]
    return [exported.graph_module.code, kinds]
