"""The place where a kernel of a network finds its data: how much was touched since, compared with what caches hold.

A kernel that is timed alone runs again and again on the same buffers. In a network its weights were last read a whole
run ago, and its inputs some kernels ago.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from cdmpp.network.graph import Call, NetworkGraph


@dataclass(frozen=True)
class Touch:
    """A call reads or writes this buffer."""

    bytes: int
    """Bytes of the buffer that are touched."""
    since: int
    """Bytes of other buffers that were touched since it was touched last, in a network that runs again and again."""
    written: bool


def touches(graph: NetworkGraph) -> list[list[Touch]]:
    """Return the touches of each call, in the order of the program."""
    recent: OrderedDict[object, int] = OrderedDict()  # least recent first
    found: list[list[Touch]] = []
    for run in range(2):  # what the first run leaves behind, the second finds
        for place, call in enumerate(graph.calls):
            seen = []
            for buffer, size, written in _buffers(graph, place, call):
                since = _since(recent, buffer)
                recent[buffer] = size
                recent.move_to_end(buffer)
                seen.append(Touch(size, since, written))
            if run:
                found.append(seen)
    return found


def _since(recent: OrderedDict[object, int], buffer: object) -> int:
    if buffer not in recent:
        return sum(recent.values())
    total = 0
    for other in reversed(recent):
        if other == buffer:
            break
        total += recent[other]
    return total


def _buffers(graph: NetworkGraph, place: int, call: Call) -> Iterator[tuple[object, int, bool]]:
    """(name, bytes touched, whether it is written).

    No more is touched than is computed with or copied: of a table that is looked up in, some rows.
    """
    most = max(call.output_bytes, 4 * graph.tasks[call.task_id].flops)
    for number, size in call.resident:
        yield ("resident", number), int(min(size, most)), False
    for source in call.inputs:
        yield ("result", source), int(min(graph.calls[source].output_bytes, most)), False
    yield ("result", place), call.output_bytes, True
