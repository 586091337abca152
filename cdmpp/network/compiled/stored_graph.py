"""Graphs of networks that were read before, kept in the cache: a second question needs no import."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError
from cdmpp.network.graph import Call, NetworkGraph, check_runs, graph_of
from cdmpp.network.source.source import NetworkSource, positional, read_network
from cdmpp.platform.files import read_json, write_json
from cdmpp.platform.paths import cache_root, conf_folder
from cdmpp.programs.compiled import TVM, compiled_flag, compiled_noted
from cdmpp.programs.networks import export
from cdmpp.programs.task import Task

_VERSION = "2"
"""Goes up when the same network gives another graph."""
_PACKAGES = ("torch", "torchvision", "transformers", "onnx", "apache-tvm")


@dataclass(frozen=True)
class ReadNetwork:
    """A network's graph, and the way to the rest of it."""

    graph: NetworkGraph
    batch: int
    source: Callable[[], NetworkSource]
    """The Relax module and the torch model; reads them where only the graph was kept."""
    flags: tuple[str, ...] = ()
    """Differences from the run that was asked for, a sentence each."""


def graph_for(
    given: Any,
    example_inputs: Any = None,
    *,
    batch: int | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    dtype: str = "float32",
    before_reading: Callable[[], None] = lambda: None,
) -> ReadNetwork:
    """As ``source.read_network``, but from the cache where a network of that name, file or computation was read.

    ``before_reading`` is called where it was not.
    """
    exported, flags = (None, ()) if example_inputs is None else _exported(given, example_inputs)

    def read() -> NetworkSource:
        return read_network(given, example_inputs, batch=batch, inputs=inputs, dtype=dtype, exported=exported)

    told = [batch, {name: list(shape) for name, shape in (inputs or {}).items()}, dtype, type(given).__name__]
    content = _of_name(given) if example_inputs is None else _computed(exported)
    key = None if content is None else _digest([content, told, _surroundings()])
    if key is None:
        before_reading()
        source = read()
        return ReadNetwork(_graph(source), source.batch, lambda: source, flags or source.flags)
    path = cache_root() / "networks" / f"v{_VERSION}" / f"{key}.json"
    try:
        stored = read_json(path)
        return ReadNetwork(_restored(stored["graph"]), int(stored["batch"]), cache(read), flags)
    except (DataError, KeyError, TypeError, ValueError):  # not there, or damaged: made again
        before_reading()
        source = read()
        graph = _graph(source)
        write_json(path, {"graph": dataclasses.asdict(graph), "batch": source.batch})
        return ReadNetwork(graph, source.batch, lambda: source, flags or source.flags)


def _graph(source: NetworkSource) -> NetworkGraph:
    graph = graph_of(source.module, source.name)
    check_runs(graph)
    return graph


def _of_name(given: Any) -> list[str] | None:
    """What is read, if that is told by a name or a file; a file of Python may do anything."""
    if not isinstance(given, str | Path) or ".py:" in (text := str(given)):
        return None
    path = Path(text.removeprefix("hf:")).expanduser()
    config = path / "config.json" if path.is_dir() else path
    return [text, hashlib.sha256(config.read_bytes()).hexdigest() if config.is_file() else ""]


def _exported(given: Any, example_inputs: Any) -> tuple[Any, tuple[str, ...]]:
    """Of a torch module, and what its export says; of others nothing."""
    import torch

    if not isinstance(given, torch.nn.Module):
        return None, ()
    with compiled_noted() as compiled:
        return export(*positional(given.eval(), example_inputs)), compiled_flag(compiled, TVM)


def _computed(exported: Any) -> list[Any] | None:
    """What a torch module computes, whatever its weights."""
    if exported is None:
        return None
    places = [node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"]
    kinds = [[list(map(str, getattr(value, "shape", ()))), str(getattr(value, "dtype", value))] for value in places]
    return [exported.graph_module.code, kinds]


def _digest(asked: Any) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:24]


@cache
def _surroundings() -> list[str]:
    """Versions of what reads networks, and the shipped lists of them."""
    found = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((conf_folder() / "data").glob("*.yaml"))]
    for package in _PACKAGES:
        try:
            found.append(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            found.append("")
    return found


def _restored(stored: Mapping[str, Any]) -> NetworkGraph:
    calls = tuple(
        Call(**{**c, "inputs": tuple(c["inputs"]), "resident": tuple((int(n), int(size)) for n, size in c["resident"])})
        for c in stored["calls"]
    )
    tasks = {key: Task(**task) for key, task in stored["tasks"].items()}
    return NetworkGraph(**{**stored, "calls": calls, "tasks": tasks, "results": tuple(stored["results"])})
