"""ChakraNode: a node of the trace of one rank, with its attributes as plain values; and the trace, checked."""

from __future__ import annotations

import heapq
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError
from cdmpp.platform.content import content_of, parse_json
from cdmpp.platform.limits import shown
from cdmpp.trace.chakra.messages import NODE_TYPES, file_of, messages_of, schema

OWN = "cdmpp"
"""Attribute with what the schema has no word for, as JSON: other readers pass over it."""
VERSION = "0.0.4"
"""Version of the schema that is written."""
_MOST_MICROS = 10**15
"""A node that takes longer, some thirty years, is broken."""


@dataclass(frozen=True)
class ChakraNode:
    """A node computes, or takes part in an exchange."""

    id: int
    name: str
    type: str
    """One of ``NODE_TYPES``."""
    after: tuple[int, ...]
    """Ids of the nodes whose ends it needs, of data and of control, each once."""
    duration_micros: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Name -> number, truth or text."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """``cdmpp`` wrote this beside the schema; empty in traces of others."""

    @property
    def title(self) -> str:
        """Return what a message calls it."""
        return f"node {self.id} ({shown(self.name)})"


@dataclass(frozen=True)
class ChakraTrace:
    """These are the nodes of one rank, sorted so that none stands before one that it needs."""

    rank: int
    nodes: tuple[ChakraNode, ...]
    own: Mapping[str, Any] = field(default_factory=dict)
    """``cdmpp`` wrote this of the rank and the step; empty in traces of others."""


def encoded(trace: ChakraTrace) -> bytes:
    """Return the content of the trace's file."""
    classes = schema()
    metadata = classes.metadata(version=VERSION)
    if trace.own:
        metadata.attr.append(_attribute(OWN, _json(trace.own)))
    nodes = []
    for node in trace.nodes:
        made = classes.node(
            id=node.id, name=node.name, type=NODE_TYPES.index(node.type), data_deps=node.after,
            duration_micros=node.duration_micros,
        )  # fmt: skip
        made.attr.extend(_attribute(name, value) for name, value in node.attributes.items())
        if node.own:
            made.attr.append(_attribute(OWN, _json(node.own)))
        nodes.append(made)
    return file_of(metadata, nodes)


def read_trace(path: Path, rank: int) -> ChakraTrace:
    """Read the trace of a rank.

    Raises:
        DataError: a file that is no Chakra trace; two nodes of one id, one that needs a node that is not there, nodes
            that wait for each other in a circle, or a value that cannot be.
    """
    metadata, messages = messages_of(content_of(path), path)
    nodes = [_node(message, path) for message in messages]
    return ChakraTrace(rank, _sorted(nodes, path), _attributes(metadata.attr, f"{path}: metadata")[1])


def _attribute(name: str, value: bool | int | str) -> Any:
    made = schema().attribute(name=name)
    kind = "bool_val" if isinstance(value, bool) else "string_val" if isinstance(value, str) else "int64_val"
    setattr(made, kind, value)
    return made


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)


def _node(message: Any, path: Path) -> ChakraNode:
    where = f"{path}: node {message.id}"
    if not 0 <= message.type < len(NODE_TYPES):
        raise DataError(f"{where} is of type {message.type}: expected 0 to {len(NODE_TYPES) - 1}, as in et_def.proto")
    if message.duration_micros > _MOST_MICROS:
        raise DataError(f"{where} takes {message.duration_micros:,} us: expected at most {_MOST_MICROS:,}")
    after = tuple(dict.fromkeys((*message.data_deps, *message.ctrl_deps)))
    attributes, own = _attributes(message.attr, where)
    kind = NODE_TYPES[message.type]
    return ChakraNode(message.id, message.name, kind, after, message.duration_micros, attributes, own)


def _attributes(given: Any, where: str) -> tuple[dict[str, Any], Mapping[str, Any]]:
    found = dict[str, Any]()
    own: Any = {}
    for one in given:
        kind = one.WhichOneof("value")
        if kind is None:  # a list, or bytes
            continue
        value = getattr(one, kind)
        value = tuple(value.values) if kind == "bool_list" else value
        if isinstance(value, float) and not math.isfinite(value):
            raise DataError(f"{where}: attribute {one.name!r} is {value}: expected a finite number")
        if one.name in found or one.name == OWN and own:
            raise DataError(f"{where} has the attribute {one.name!r} twice: expected each once")
        if one.name != OWN:
            found[one.name] = value
            continue
        try:
            own = parse_json(value) if isinstance(value, str) else value
        except ValueError as error:
            raise DataError(f"{where}: attribute {OWN!r} is no JSON: {error}") from error
        if not isinstance(own, dict):
            raise DataError(f"{where}: attribute {OWN!r} is {shown(own)}: expected an object of JSON")
    return found, own


def _sorted(nodes: list[ChakraNode], path: Path) -> tuple[ChakraNode, ...]:
    """Sort them so that none stands before one that it needs; of those that may be next the least id."""
    by_id = {node.id: node for node in nodes}
    if len(by_id) < len(nodes):
        twice = next(one for one, count in Counter(node.id for node in nodes).items() if count > 1)
        raise DataError(f"{path} has two nodes of id {twice}: expected each id once")
    needs, needed = dict[int, int](), dict[int, list[int]]()
    for node in nodes:
        needs[node.id] = len(node.after)
        for other in node.after:
            if other not in by_id:
                raise DataError(f"{path}: node {node.id} needs node {other}, which is not there")
            needed.setdefault(other, []).append(node.id)
    ready = [one for one, count in needs.items() if not count]
    heapq.heapify(ready)
    found = list[ChakraNode]()
    while ready:
        one = heapq.heappop(ready)
        found.append(by_id[one])
        for other in needed.get(one, ()):
            needs[other] -= 1
            if not needs[other]:
                heapq.heappush(ready, other)
    if len(found) < len(nodes):
        stuck = min(one for one, count in needs.items() if count)
        raise DataError(f"{path}: {len(nodes) - len(found)} nodes wait for each other in a circle, such as {stuck}")
    return tuple(found)
