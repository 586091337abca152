"""The trace of one rank that ``write_chakra`` wrote: the same rank again, checked against what its nodes say."""

from __future__ import annotations

from cdmpp.errors import DataError
from cdmpp.network.training_step import StepBuffer
from cdmpp.platform.limits import Limits, shown
from cdmpp.simulate.task import check_seconds
from cdmpp.steps.exchange import START
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import Gradient, Op, RankGraph
from cdmpp.trace.chakra.node import ChakraNode, ChakraTrace
from cdmpp.trace.chakra.rank import FORMAT, ChakraRank, Use, list_of, made, peers_of

_TIMED = ("start", "delay", "op", "gap", "arrival", "end")
_PLACE = Limits(0, 2**53)


def read_rank(trace: ChakraTrace, ranks: int) -> ChakraRank:
    """Read a rank of ``ranks``; ``DataError`` where the trace is not as it was written."""
    for name, expected in (("format", FORMAT), ("rank", trace.rank), ("ranks", ranks)):
        if (given := trace.own.get(name)) != expected:
            raise DataError(f"the trace of rank {trace.rank} has {name} {shown(given)}: expected {expected}")
    return _Rank(trace).read()


class _Rank:
    def __init__(self, trace: ChakraTrace) -> None:
        self.trace = trace
        self.parts: dict[tuple[str, int], ChakraNode] = {}
        self.keys: dict[int, tuple[str, int]] = {}
        """Id of a node -> its part and number."""
        for node in trace.nodes:
            part, place = node.own.get("part"), _PLACE.fitting(f"place of {node.title}", node.own.get("place"))
            if part not in (*_TIMED, "exchange") or (part == "exchange") != node.type.startswith("COMM_"):
                raise DataError(f"{node.title} is a {node.type} and the part {shown(part)} of a step: they do not fit")
            if (part, place) in self.parts:
                raise DataError(f"{node.title} is the second {part} {place} of rank {trace.rank}: expected one")
            self.parts[part, place] = node
            self.keys[node.id] = (part, place)
        self.uses: dict[int, Use] = {}

    def read(self) -> ChakraRank:
        own, rank, parts = self.trace.own, self.trace.rank, self.parts
        count = sum(part == "op" for part, _ in parts)
        if ("end", 0) not in parts or any(place >= count for part, place in parts if part in ("op", "delay", "gap")):
            raise DataError(f"the trace of rank {rank} has not all of its {count} ops, or no end of the step")
        for part, number in parts:
            if part == "exchange":
                self.uses[number] = self._use(number)
        ops, last = list[Op](), dict[str, tuple[str, int]]()
        for place in range(count):
            ops.append(self._op(place, last))
        for part, number in self._needs(parts["end", 0]):
            if part == "exchange":
                self.uses[number].before.append(count)
        graph = made(
            RankGraph,
            {
                "rank": rank,
                "ops": tuple(ops),
                "gradients": list_of(Gradient, own.get("gradients"), f"gradients of rank {rank}"),
                "modules": list_of(ModuleSpan, own.get("modules"), f"modules of rank {rank}"),
                "buffers": list_of(StepBuffer, own.get("buffers"), f"buffers of rank {rank}"),
                "start_s": self._seconds(("start", 0)),
                "tail_s": self._seconds(("end", 0)),
                "update_shards": own.get("update_shards"),
            },
            f"rank {rank}",
        )
        return ChakraRank(graph, tuple(self.uses.values()))

    def _op(self, place: int, last: dict[str, tuple[str, int]]) -> Op:
        """Read an op; ``last``: stream -> what stands on it before, which becomes the op or the gap after it."""
        node, delay = self.parts["op", place], self.parts.get(("delay", place))
        fields = {name: value for name, value in node.own.items() if name not in ("part", "place", "seconds")}
        stream = fields.get("stream", "compute")
        if not isinstance(stream, str):
            raise DataError(f"{node.title} is on the stream {shown(stream)}: expected a name")
        before = last.get(stream, ("start", 0) if ("start", 0) in self.parts else None)
        needs = self._needs(node if delay is None else delay)
        if delay is not None and self._needs(node) != [("delay", place)]:
            raise DataError(f"{node.title} needs more than its delay: no trace of cdmpp")
        if before is not None and before not in needs:
            raise DataError(f"{node.title} does not need what stands before it on {stream}: no trace of cdmpp")
        waits = list[int]()
        for part, number in needs:
            if part == "exchange":
                self.uses[number].before.append(place)
            elif part == "op" and (part, number) != before:
                waits.append(number)
            elif (part, number) != before:
                raise DataError(f"{node.title} needs the {part} of another op: no trace of cdmpp")
        last[stream] = ("gap", place) if ("gap", place) in self.parts else ("op", place)
        given = {
            **fields,
            "name": node.name,
            "duration_s": self._seconds(("op", place)),
            "gap_s": self._seconds(("gap", place)),
            "delay_s": self._seconds(("delay", place)),
            "waits": waits,
        }
        return made(Op, given, node.title)

    def _use(self, number: int) -> Use:
        node, arrival = self.parts["exchange", number], self.parts.get(("arrival", number))
        needs = self._needs(node)
        if arrival is not None:
            needs = [*self._needs(arrival), *(need for need in needs if need != ("arrival", number))]
        ops = [place for part, place in needs if part == "op"]
        if len(ops) > 1 or any(part not in ("op", "start", "exchange") for part, _ in needs):
            raise DataError(f"{node.title} is launched by more than one op: no trace of cdmpp")
        fields = {name: value for name, value in node.own.items() if name not in ("part", "place", "ranks")}
        members = node.own.get("ranks")
        if not isinstance(members, list) or not all(type(one) is int for one in members):
            raise DataError(f"{node.title} is of the ranks {shown(members)}: expected a list of ranks")
        if node.type != "COMM_COLL_NODE" and sorted(peers_of(node, self.trace.rank)) != sorted(members):
            raise DataError(f"{node.title} is of the ranks {shown(members)}, and its node of others")
        wire_s = fields.get("wire_s")
        if round(1e6 * (0.0 if wire_s is None else check_seconds(wire_s, "wire time"))) != node.duration_micros:
            raise DataError(f"{node.title} takes {node.duration_micros} us, and {shown(wire_s)} s by its attribute")
        after = ops[0] if ops else START
        key, lag_s = ("exchange", number), self._seconds(("arrival", number))
        return Use(node, key, number, after, tuple(members), lag_s=lag_s, fields=fields)

    def _needs(self, node: ChakraNode) -> list[tuple[str, int]]:
        return [self.keys[other] for other in node.after]

    def _seconds(self, part: tuple[str, int]) -> float:
        """Seconds of a part, 0 where there is none; ``DataError`` where its node says another duration."""
        if part not in self.parts:
            return 0.0
        node = self.parts[part]
        seconds = float(check_seconds(node.own.get("seconds"), f"duration of {node.title}"))  # type: ignore[arg-type]
        if abs(1e6 * seconds - node.duration_micros) > 1:
            raise DataError(f"{node.title} takes {node.duration_micros} us, and {seconds:g} s by its attribute cdmpp")
        return seconds
