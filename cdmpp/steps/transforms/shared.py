"""Shared: the parameters that ranks share along all degrees of their replicas, apart from those they share along some.

Experts, for one, are divided over ranks each of which has a batch of its own: along that degree nobody averages them.
"""

from __future__ import annotations

from cdmpp.steps.derived import derived
from cdmpp.steps.module_span import ModuleSpan, Rows
from cdmpp.steps.step_graph import RankGraph


def kinds_of(rank: RankGraph) -> tuple[tuple[str, ...], ...]:
    """List degrees along which some parameters are apart, each set once; the empty one first."""
    found = [one.apart for one in rank.gradients] + [one.apart for one in rank.modules]
    return ((), *dict.fromkeys(filter(None, found)))


def only(rank: RankGraph, apart: tuple[str, ...]) -> RankGraph:
    """Return the rank with those parameters that are apart along just these degrees, and modules of them."""
    if kinds_of(rank) == (apart,):
        return rank
    gradients = tuple(one for one in rank.gradients if one.apart == apart)
    modules = tuple(
        part for one in rank.modules if one.apart == apart or not apart if (part := _part(one, bool(apart))) is not None
    )
    return derived(rank, gradients=gradients, modules=modules, buffers=() if apart else rank.buffers)


def _part(module: ModuleSpan, is_apart: bool) -> ModuleSpan | None:
    """The parameters of a module that are apart, or the others; None where it has none."""
    rows, trained = _taken(module.rows, is_apart), module.trained_rows
    if rows == module.rows:
        return None if is_apart and not rows else module
    size = sum(max(one, 1) * row_bytes for one, row_bytes, _ in rows)
    trained = None if trained is None else _taken(trained, is_apart)
    own = module.apart if is_apart else ()
    return derived(module, bytes=size, rows=rows, trained_rows=trained, apart=own) if size else None


def _taken(rows: tuple[Rows, ...], is_apart: bool) -> tuple[Rows, ...]:
    return tuple(one for one in rows if (one[2] > 0) == is_apart)
