"""Links: measured exchanges with another bandwidth, another latency, or no time at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from cdmpp.errors import CdmppError
from cdmpp.steps.replay import contention_free
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.transforms.scale import check_factor
from cdmpp.steps.wire import slowed, wires

_EVEN = 0.5
"""Share of a processor that each of two busy threads has."""


def scale_bandwidth(graph: StepGraph, factor: float, link_gbps: float | None = None) -> StepGraph:
    """Let links carry ``factor`` times as many bytes a second; their latency stays.

    ``link_gbps``: Gbit/s of the traced links. With it an exchange that they limit is told from one that processors
    limit. Ops lose more next to an exchange on a faster link, but not in proportion: a byte of a slower exchange needs
    more of a processor. Beyond half of it two that are busy share it evenly.

    Raises:
        CdmppError: a factor or a rate that is not positive and finite.
    """
    check_factor("bandwidth", factor)
    if link_gbps is not None:
        check_factor("link_gbps", link_gbps)
    graph, wire = contention_free(graph), wires(graph)
    rate = None if link_gbps is None else 1e9 / 8 * link_gbps
    seconds = [slowed(one, wire[one.kind], factor, rate) for one in graph.exchanges]
    share = min(math.sqrt(factor) * graph.processor_share, max(_EVEN, graph.processor_share))
    return replace(_with_wires(graph, seconds), processor_share=share)


def scale_latency(graph: StepGraph, factor: float) -> StepGraph:
    """Let the fixed part of exchanges take ``factor`` times as long; ``CdmppError`` for a negative factor."""
    if not 0 <= factor < math.inf:
        raise CdmppError(f"latency {factor}: expected a factor from 0 up")
    graph, wire = contention_free(graph), wires(graph)
    fixed = [min(wire[one.kind].scale * wire[one.kind].latency_s, one.measured_s) for one in graph.exchanges]
    return _with_wires(
        graph, [one.measured_s + (factor - 1) * part_s for one, part_s in zip(graph.exchanges, fixed, strict=True)]
    )


def without_wire_time(graph: StepGraph) -> StepGraph:
    """Make links infinitely fast: exchanges take no time once the last rank has arrived."""
    graph = contention_free(graph)
    return _with_wires(graph, [0.0] * len(graph.exchanges))


def _with_wires(graph: StepGraph, seconds: Sequence[float]) -> StepGraph:
    """Exchanges that take so long, and the delays of ops that messages block."""
    delayed: dict[tuple[int, int], float] = {}
    for one, new_s in zip(graph.exchanges, seconds, strict=True):
        ratio = new_s / one.measured_s if one.measured_s else 1.0
        for blocked in ((rank, place) for rank, places in one.blocks.items() for place in places):
            delayed[blocked] = max(ratio, delayed.get(blocked, 0.0))
    ranks = list(graph.ranks)
    for (rank, place), ratio in delayed.items():
        ops = list(ranks[rank].ops)
        ops[place] = replace(ops[place], delay_s=ratio * ops[place].delay_s)
        ranks[rank] = replace(ranks[rank], ops=tuple(ops))
    exchanges = tuple(replace(one, wire_s=new_s) for one, new_s in zip(graph.exchanges, seconds, strict=True))
    return replace(graph, ranks=tuple(ranks), exchanges=exchanges)
