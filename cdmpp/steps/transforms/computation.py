"""Computation: a step without its exchanges, for a parallel strategy to add others."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.steps.step_graph import RankGraph, StepGraph


def computation(graph: StepGraph) -> StepGraph:
    """Keep only what ranks compute. The delay of an op becomes the gap after the op before it on its stream.

    Nothing is left to wait for, so the host is busy meanwhile. Gradients of unknown size are left out.
    """
    return replace(graph, ranks=tuple(map(_computed, graph.ranks)), exchanges=())


def _computed(rank: RankGraph) -> RankGraph:
    later, ops = dict.fromkeys(rank.streams, rank.tail_s), list(rank.ops)
    for place in reversed(range(len(ops))):
        op = ops[place]
        ops[place] = replace(op, gap_s=op.gap_s + later[op.stream], delay_s=0.0)
        later[op.stream] = op.delay_s
    gradients = tuple(one for one in rank.gradients if one.bytes)
    start_s = rank.start_s + max(later.values(), default=0.0)
    return replace(rank, ops=tuple(ops), gradients=gradients, start_s=start_s, tail_s=0.0)
