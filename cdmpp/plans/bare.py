"""Bare: a rank whose ops do nothing, from which strategies tell what it exchanges."""

from __future__ import annotations

from functools import cache

from cdmpp.steps.derived import derived
from cdmpp.steps.step_graph import Op, RankGraph


def bare(rank: RankGraph) -> RankGraph:
    """Return rank 0 with ops that do nothing: of them exchanges depend on the phases alone."""
    return derived(rank, rank=0, ops=tuple(map(bare_op, rank.ops)), start_s=0.0)


def bare_op(op: Op) -> Op:
    """Return an op of the same phase, kind and stream that does nothing."""
    return _bare(op.phase, op.kind, op.stream)


@cache
def _bare(phase: str, kind: str, stream: str) -> Op:
    return Op("", phase, 0.0, kind=kind, stream=stream)
