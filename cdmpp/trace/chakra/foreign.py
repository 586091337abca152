"""The trace of one rank that another program wrote: its nodes as ops of the forward pass, and its exchanges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from cdmpp.errors import DataError
from cdmpp.platform.limits import shown
from cdmpp.steps.exchange import START
from cdmpp.steps.step_graph import HOST_COPY, Op, RankGraph
from cdmpp.trace.chakra.node import ChakraNode, ChakraTrace
from cdmpp.trace.chakra.rank import ChakraRank, Use, kind_of, peers_of

_ALL = ("", "0")
"""Names of the group of all ranks."""
_COPIES = ("MEM_LOAD_NODE", "MEM_STORE_NODE")


def read_rank(trace: ChakraTrace, ranks: int) -> ChakraRank:
    """Read the ops of a rank, in the order in which its nodes stand, and its exchanges.

    A node of a CPU stands on the stream ``host``, one with the attribute ``stream`` on that stream, others on
    ``compute``. An exchange that waits for ops of several streams, or for one of another group, is launched by an op
    that takes no time. What no node waits for the end of the step waits for.

    Raises:
        DataError: a node that a step graph has no counterpart for.
    """
    return _Rank(trace.rank, ranks).read(trace.nodes)


class _Rank:
    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.ops = list[Op]()
        self.uses: dict[int, Use] = {}
        """Id of a node -> its exchange."""
        self.needs: dict[int, tuple[set[int], set[int]]] = {}
        """Id of a node -> places of ops, and ids of exchanges, of which it is the end."""
        self.counts = Counter[tuple[Any, ...]]()

    def read(self, nodes: Iterable[ChakraNode]) -> ChakraRank:
        for node in nodes:
            ops, exchanges = set[int](), set[int]()
            for other in node.after:
                ops |= self.needs[other][0]
                exchanges |= self.needs[other][1]
            if node.type == "METADATA_NODE":
                self.needs[node.id] = ops, exchanges
            elif node.type.startswith("COMM_"):
                self._exchange(node, ops, exchanges)
                self.needs[node.id] = set(), {node.id}
            else:
                self.needs[node.id] = {self._op(node, ops, exchanges)}, set()
        for use in self.uses.values():
            use.before = use.before or [len(self.ops)]
        return ChakraRank(RankGraph(self.rank, tuple(self.ops)), tuple(self.uses.values()))

    def _op(self, node: ChakraNode, ops: set[int], exchanges: set[int]) -> int:
        seconds, kind, stream = 1e-6 * node.duration_micros, "", "compute"
        if node.type in _COPIES and node.duration_micros:
            kind, stream = HOST_COPY, "copies"
        elif node.type != "COMP_NODE":
            why = "without a duration" if node.type in _COPIES else "which a step graph has no counterpart for"
            raise DataError(f"{node.title} of rank {self.rank} is a {node.type} {why}")
        elif node.attributes.get("is_cpu_op", False):
            stream = "host"
        elif "stream" in node.attributes:
            stream = f"stream {shown(node.attributes['stream'])}"
        return self._add(node.name, seconds, stream, ops, exchanges, kind)

    def _add(self, name: str, seconds: float, stream: str, ops: set[int], exchanges: set[int], kind: str = "") -> int:
        place = len(self.ops)
        waits = tuple(sorted(other for other in ops if self.ops[other].stream != stream))
        self.ops.append(Op(name, "forward", seconds, kind=kind, stream=stream, waits=waits))
        for other in exchanges:
            self.uses[other].before.append(place)
        return place

    def _exchange(self, node: ChakraNode, ops: set[int], exchanges: set[int]) -> None:
        if node.attributes.get("is_cpu_op", False):
            raise DataError(f"{node.title} of rank {self.rank} is an exchange of a CPU: expected one of a device")
        if node.type == "COMM_COLL_NODE":
            kind_of(node)
            self._check_dimensions(node)
            group = str(node.attributes.get("pg_name", ""))
            group = "" if group in _ALL else group
            queue: tuple[Any, ...] = ("collective", group)
            key, members = queue, None if group else tuple(range(self.ranks))
            fields = {"group": group}
        else:
            source, target = peers_of(node, self.rank)
            queue = ("message", (source, target))
            key, members = (*queue, node.attributes.get("comm_tag", 0)), (source, target)
            fields = {"group": f"{source}->{target}"}
        others = {other for other in exchanges if self.uses[other].key[:2] != queue}
        if others or len({self.ops[place].stream for place in ops}) > 1:
            after = self._add(f"{node.name} launch", 0.0, f"launch {node.id}", ops, others)
        else:
            after = max(ops, default=START)
        number, self.counts[key] = self.counts[key], self.counts[key] + 1
        place = len(self.uses)
        self.uses[node.id] = Use(node, (*key, number), place, after, members, fields=fields)

    def _check_dimensions(self, node: ChakraNode) -> None:
        dimensions = node.attributes.get("involved_dim", (True,))
        if not isinstance(dimensions, tuple) or not all(dimensions):
            raise DataError(
                f"{node.title} of rank {self.rank} is a collective of some dimensions of a network, involved_dim "
                f"{shown(dimensions)}: expected all, or a group by pg_name"
            )
