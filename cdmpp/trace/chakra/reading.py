"""Chakra traces of all ranks as a step graph: those of ``write_chakra`` give the same graph, others what they say.

The n-th collective of a group on one rank is the n-th of it on the others, and so are messages of one tag.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError, some
from cdmpp.platform.limits import Limits, shown
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.step_graph import StepGraph
from cdmpp.trace.chakra import foreign, own
from cdmpp.trace.chakra.node import ChakraTrace, read_trace
from cdmpp.trace.chakra.rank import ChakraRank, Use, kind_of, made, peers_of, size_of

_FILE = re.compile(r"(.+)\.([0-9]{1,5})\.et")
_SIZE = Limits(1, 2**53, "bytes")


def read_chakra(folder: Path | str) -> StepGraph:
    """Read the traces ``NAME.RANK.et`` of all ranks, from rank 0 up.

    In traces of others each compute node is an op of the forward pass, in the order in which nodes can run, of several
    the least id first, as ASTRA-sim runs them.

    Args:
        folder: with the traces of one job.

    Returns:
        The step graph. Exchanges have a measured time only where ``write_chakra`` wrote one; a topology prices others.

    Raises:
        DataError: no traces, or not of all ranks; a broken or contradictory trace; a node that a step graph has no
            counterpart for; exchanges that do not match.
        CdmppError: no protobuf is installed.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder: expected one with NAME.0.et, NAME.1.et and so on")
    found = [(match[1], int(match[2]), one) for one in folder.iterdir() if (match := _FILE.fullmatch(one.name))]
    if len(names := sorted({name for name, *_ in found})) != 1:
        what = f"traces of {len(names)} jobs, {', '.join(names[:3])}" if names else "no traces"
        raise DataError(f"{folder} holds {what}: expected one job, NAME.0.et, NAME.1.et and so on")
    paths = {rank: path for _, rank, path in found}
    if sorted(rank for _, rank, _ in found) != [*range(len(found))]:
        given = some([str(rank) for rank in sorted(paths)], ", ")
        raise DataError(f"{folder} has traces of ranks {given}: expected one of each, from 0 up")
    return graph_of_traces([read_trace(paths[rank], rank) for rank in range(len(paths))])


def graph_of_traces(traces: Sequence[ChakraTrace]) -> StepGraph:
    """Make a step graph of the traces of all ranks, from rank 0 up; errors as ``read_chakra``."""
    if len({bool(trace.own) for trace in traces}) > 1:
        raise DataError("some of the traces are those of cdmpp, and others are not: expected those of one job")
    reader, first = own if traces[0].own else foreign, traces[0].own
    ranks = [reader.read_rank(trace, len(traces)) for trace in traces]
    backend, workers = first.get("backend", ""), first.get("workers", 1)
    return StepGraph(tuple(one.graph for one in ranks), _exchanges(ranks), backend, workers)


def _exchanges(ranks: Sequence[ChakraRank]) -> tuple[Exchange, ...]:
    """Return the exchanges, each with the parts of all ranks that take part, in an order that all of them have."""
    by_key: dict[tuple[Any, ...], dict[int, Use]] = {}
    groups: dict[tuple[Any, ...], set[int]] = {}
    for rank, one in enumerate(ranks):
        for use in one.uses:
            by_key.setdefault(use.key, {})[rank] = use
            groups.setdefault(use.key[:2], set()).add(rank)
    placed = list[tuple[int, int, Exchange]]()
    for key, uses in by_key.items():
        first = uses[min(uses)]
        members = groups[key[:2]] if first.members is None else set(first.members)
        if set(uses) != members or any(use.members != first.members for use in uses.values()):
            given, expected = (some([str(rank) for rank in sorted(one)], ", ") for one in (uses, members))
            raise DataError(f"{first.node.title} is in the traces of ranks {given}: expected those of {expected}")
        made_of = _exchange(uses)
        leader = min(uses) if made_of.peers is None else made_of.peers[0]
        placed.append((uses[leader].place, leader, made_of))
    return tuple(one for *_, one in sorted(placed, key=lambda place: place[:2]))


def _exchange(uses: Mapping[int, Use]) -> Exchange:
    first = uses[min(uses)]
    said = {rank: (kind_of(use.node), use.node.attributes.get("comm_size"), use.fields) for rank, use in uses.items()}
    for rank, other in said.items():
        if other != said[min(uses)]:
            raise DataError(
                f"{first.node.title} of rank {min(uses)} is {shown(said[min(uses)])}, and {shown(other)} on rank {rank}"
            )
    kind, size, given = said[min(uses)]
    size = _SIZE.fitting(f"comm_size of {first.node.title}", size)
    if kind == "send_recv":
        sides = {peers_of(use.node, rank) for rank, use in uses.items()}
        types = {use.node.type for use in uses.values()}
        if len(sides) != 1 or len(types) != 2:
            raise DataError(f"{first.node.title} is a message with {len(types)} sides: expected a send and a receive")
    whole = size * (len(uses) if kind == "all_gather" else 1)
    fields = {"kind": kind, "bytes": whole, "name": first.node.name, **given}
    if fields["kind"] != kind:
        raise DataError(f"{first.node.title} is a {kind}, and {shown(fields['kind'])} by its attribute cdmpp")
    _SIZE.fitting(f"bytes of {first.node.title}", fields["bytes"])
    if size_of(kind, fields["bytes"], len(uses)) != size:
        raise DataError(f"{first.node.title} has {size:,} bytes, and {fields['bytes']:,} by its attribute cdmpp")
    of_ranks = {
        "after": {rank: use.after for rank, use in sorted(uses.items())},
        "before": {rank: tuple(use.before) for rank, use in sorted(uses.items()) if use.before},
        "lag_s": {rank: use.lag_s for rank, use in sorted(uses.items()) if use.lag_s},
    }
    return made(Exchange, {**fields, **of_ranks}, first.node.title)
