"""A step graph as Chakra traces, one file a rank: what has no node there is refused."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError, DataError
from cdmpp.platform.files import write_bytes
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.exchange_costs import streams_of
from cdmpp.steps.keys import Stream
from cdmpp.steps.step_graph import Op, RankGraph, StepGraph
from cdmpp.trace.chakra.messages import COLLECTIVES
from cdmpp.trace.chakra.node import ChakraNode, ChakraTrace, encoded
from cdmpp.trace.chakra.rank import FORMAT, KINDS, size_of

OP_NODES = ("name", "duration_s", "gap_s", "delay_s", "waits")
"""Fields of an op that nodes say."""
EXCHANGE_NODES = ("after", "before", "lag_s", "blocks")
"""Fields of an exchange that nodes say."""


def write_chakra(graph: StepGraph, folder: Path | str, name: str = "step") -> tuple[Path, ...]:
    """Write ``NAME.RANK.et`` for each rank, and ``NAME.groups.json`` where a group has not all ranks.

    ASTRA-sim takes ``folder/NAME`` as its workload and the groups as its communicator groups. Compute nodes last whole
    microseconds there, rounded so that no end on a stream is off by more than half of one; the attribute ``cdmpp`` has
    the seconds, and all else that ``read_chakra`` needs for the same graph.

    Args:
        graph: the step; exchanges that were not measured have no duration, so that the reader prices them.
        folder: made where it is not there.
        name: before the rank in the names of the files.

    Returns:
        The paths that were written.

    Raises:
        CdmppError: something that has no node in Chakra's schema, or no protobuf is installed.
        DataError: a file cannot be written, or the folder has traces of the name that would stay.
    """
    folder = Path(folder)
    contents = {f"{name}.{trace.rank}.et": encoded(trace) for trace in traces_of(graph)}
    if groups := groups_of(graph):
        members = {str(number): list(ranks) for (_, ranks), number in groups.items()}
        contents[f"{name}.groups.json"] = (json.dumps(members, indent=1) + "\n").encode()
    if others := {one.name for one in folder.glob(f"{glob.escape(name)}.*")} - set(contents):
        raise DataError(f"{folder} holds {min(others)} of another step: choose another folder, or delete it")
    for file, content in contents.items():
        write_bytes(folder / file, content)
    return tuple(folder / file for file in contents)


def traces_of(graph: StepGraph) -> tuple[ChakraTrace, ...]:
    """Return the traces of all ranks; ``CdmppError`` where something has no node in Chakra's schema."""
    _check(graph)
    groups = groups_of(graph)
    return tuple(_Writer(graph, rank, groups).trace() for rank in graph.ranks)


def groups_of(graph: StepGraph) -> dict[tuple[str, tuple[int, ...]], int]:
    """Return the number, from 1 up, of each group of ranks that are not all; 0 are all ranks."""
    found: dict[tuple[str, tuple[int, ...]], int] = {}
    for one in graph.exchanges:
        if one.kind != "send_recv" and len(one.ranks) < len(graph.ranks):
            found.setdefault((one.group, one.ranks), len(found) + 1)
    return found


def _check(graph: StepGraph) -> None:
    settings = {
        "processors that ranks share": bool(graph.processors),
        "exchanges that take a share of a processor": bool(graph.processor_share),
        "ops that run next to no exchange and are made longer next to one": graph.is_contention_free,
    }
    for what, is_set in settings.items():
        if is_set:
            raise CdmppError(f"Chakra traces have no word for {what}: such a step is not written")
    for one in graph.exchanges:
        if one.kind not in KINDS and one.kind != "send_recv":
            why = f"{one.kind} is none of {', '.join((*KINDS, 'send_recv'))}"
        elif one.is_folded:
            why = f"its ranks stand for {len(one.members)} ranks of the job, each of which needs a trace"
        elif one.kind == "send_recv" and len(one.ranks) != 2:
            why = f"a message has two ranks, this one {len(one.ranks)}"
        elif one.bytes < 1:
            why = "its bytes are unknown"
        elif one.blocks:
            why = "ops start late because of its buffer"
        else:
            continue
        raise CdmppError(f"{one.title} has no node in a Chakra trace: {why}")


@dataclass
class _Writer:
    """One rank: all nodes are numbered first, since some need later ones."""

    graph: StepGraph
    rank: RankGraph
    groups: Mapping[tuple[str, tuple[int, ...]], int]
    ids: dict[tuple[str, int], int] = field(default_factory=dict)
    """Part and its number -> id of the node."""
    clocks_s: dict[str, float] = field(default_factory=dict)
    """Stream -> seconds of all its nodes so far."""

    def trace(self) -> ChakraTrace:
        """Return the trace of the rank."""
        parts = list(self._parts())
        self.ids = {part: number for number, part in enumerate(parts)}
        waits, rank, nodes = self.graph.waits(self.rank.rank), self.rank, list[ChakraNode]()
        queued = self._queued()
        last: dict[str, int] = {}
        """Stream -> id of its last node."""
        for part, number in parts:
            if part in ("exchange", "arrival"):
                nodes.append(self._exchange(part, number, queued[number]))
                continue
            if part == "start":
                nodes.append(self._timed(part, number, rank.start_s, (), "start", ""))
                last = dict.fromkeys(rank.streams, self.ids[part, number])
                continue
            if part == "end":
                awaited = [self.ids["exchange", one] for one in waits.get(len(rank.ops), ())]
                nodes.append(self._timed(part, number, rank.tail_s, (*last.values(), *awaited), "end", ""))
                continue
            op = rank.ops[number]
            after = [last[op.stream]] if op.stream in last else []
            if part == "delay" or part == "op" and not op.delay_s:
                after += [self.ids["op", other] for other in op.waits]
                after += [self.ids["exchange", one] for one in waits.get(number, ())]
            seconds = {"delay": op.delay_s, "op": op.duration_s, "gap": op.gap_s}[part]
            beside = _beside(op, OP_NODES) if part == "op" else {}
            nodes.append(self._timed(part, number, seconds, after, op.name, op.stream, beside))
            last[op.stream] = self.ids[part, number]
        return ChakraTrace(rank.rank, tuple(nodes), self._own())

    def _parts(self) -> Iterator[tuple[str, int]]:
        """Part and its number: the place of an op, the number of an exchange; in the order of launches."""
        launched: dict[int, list[int]] = {}
        for number, one in enumerate(self.graph.exchanges):
            if self.rank.rank in one.after:
                launched.setdefault(one.after[self.rank.rank], []).append(number)
        if self.rank.start_s:
            yield "start", 0
        for place in range(START, len(self.rank.ops)):
            if place != START:
                op = self.rank.ops[place]
                yield from [("delay", place)] if op.delay_s else []
                yield "op", place
                yield from [("gap", place)] if op.gap_s else []
            for number in launched.get(place, ()):
                yield from [("arrival", number)] if self.graph.exchanges[number].lag_s.get(self.rank.rank) else []
                yield "exchange", number
        yield "end", 0

    def _queued(self) -> dict[int, list[int]]:
        """Number of an exchange of the rank -> numbers of those before it that it waits for."""
        found, last, own = dict[int, list[int]](), dict[Stream, int](), list[tuple[int, int]]()
        for number, one in enumerate(self.graph.exchanges):
            if (at := one.after.get(self.rank.rank)) is None:
                continue
            before = list[int]()
            if one.wire_s is None:
                for stream in streams_of(one, len(self.graph.ranks)):
                    if stream.rank == self.rank.rank:
                        before += [last[stream]] if stream in last else []
                        last[stream] = number
            if one.follows:
                before += next(([other] for begun, other in reversed(own) if begun <= at), [])
            if one.kind != "send_recv":
                own.append((at, number))
            found[number] = before
        return found

    def _timed(
        self, part: str, number: int, seconds: float, after: Any, name: str, stream: str,
        beside: Mapping[str, Any] | None = None,
    ) -> ChakraNode:  # fmt: skip
        begun_s = self.clocks_s.get(stream, 0.0)
        self.clocks_s[stream] = begun_s + seconds
        micros = round(1e6 * (begun_s + seconds)) - round(1e6 * begun_s)
        own = {"part": part, "place": number, "seconds": seconds, **(beside or {})}
        title = name if part in ("op", "start", "end") else f"{name} {part}"
        ids = tuple(dict.fromkeys(after))
        return ChakraNode(self.ids[part, number], title, "COMP_NODE", ids, micros, {"is_cpu_op": False}, own)

    def _exchange(self, part: str, number: int, queued: list[int]) -> ChakraNode:
        one, rank = self.graph.exchanges[number], self.rank.rank
        at, lag_s = one.after[rank], one.lag_s.get(rank, 0.0)
        launching = ("op", at) if at != START else ("start", 0)
        after = [self.ids[launching]] if launching in self.ids else []
        if part == "arrival":
            own = {"part": part, "place": number, "seconds": lag_s}
            micros, attributes = round(1e6 * lag_s), {"is_cpu_op": True}
            return ChakraNode(self.ids[part, number], f"{one.title} arrival", "COMP_NODE", tuple(after), micros,
                              attributes, own)  # fmt: skip
        after = [self.ids["arrival", number]] if lag_s else after
        after += [self.ids["exchange", other] for other in queued]
        own = {"part": part, "place": number, "ranks": [*one.ranks], "name": one.name, **_beside(one, EXCHANGE_NODES)}
        attributes, kind = self._communication(one, number)
        micros, ids = round(1e6 * (one.wire_s or 0.0)), tuple(dict.fromkeys(after))
        return ChakraNode(self.ids[part, number], one.title, kind, ids, micros, attributes, own)

    def _communication(self, one: Exchange, number: int) -> tuple[dict[str, Any], str]:
        size = size_of(one.kind, one.bytes, len(one.ranks))
        if one.kind == "send_recv":
            source, target = one.peers or (one.ranks[0], one.ranks[-1])
            found = {"is_cpu_op": False, "comm_src": source, "comm_dst": target, "comm_tag": number, "comm_size": size}
            return found, "COMM_SEND_NODE" if source == self.rank.rank else "COMM_RECV_NODE"
        group = self.groups.get((one.group, one.ranks), 0)
        kind = COLLECTIVES.index(KINDS[one.kind])
        return {"is_cpu_op": False, "comm_type": kind, "comm_size": size, "pg_name": str(group)}, "COMM_COLL_NODE"

    def _own(self) -> dict[str, Any]:
        graph, rank = self.graph, self.rank
        own: dict[str, Any] = {
            "format": FORMAT,
            "rank": rank.rank,
            "ranks": len(graph.ranks),
            "update_shards": rank.update_shards,
        }
        for name in ("gradients", "modules", "buffers"):
            own[name] = [_beside(one, ()) for one in getattr(rank, name)]
        if rank.rank == 0:
            own |= {"backend": graph.backend, "workers": graph.workers}
        return own


def _beside(one: Op | Exchange | Any, left_out: tuple[str, ...]) -> dict[str, Any]:
    """The fields that are not left out and not as usual, as JSON takes them."""
    return {
        each.name: value
        for each in fields(one)
        if each.name not in left_out and (value := getattr(one, each.name)) != each.default
    }
