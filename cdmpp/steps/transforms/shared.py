"""Shared: the parameters that ranks share along all degrees of their replicas, apart from those they share along some.

Experts, for one, are divided over ranks each of which has a batch of its own: along that degree nobody averages them.
"""

from __future__ import annotations

from collections import Counter

from cdmpp.steps.derived import derived
from cdmpp.steps.step_graph import ModuleSpan, RankGraph

Rows = tuple[tuple[int, int], ...]


def kinds_of(rank: RankGraph) -> tuple[tuple[str, ...], ...]:
    """List degrees along which some parameters are apart, each set once; the empty one first."""
    return ((), *dict.fromkeys(one.apart for one in rank.gradients if one.apart))


def only(rank: RankGraph, apart: tuple[str, ...]) -> RankGraph:
    """Return the rank with those parameters that are apart along just these degrees, and modules of them."""
    if kinds_of(rank) == (apart,):
        return rank
    gradients = tuple(one for one in rank.gradients if one.apart == apart)
    modules = tuple(part for one in rank.modules if (part := _part(one, bool(apart))) is not None)
    return derived(rank, gradients=gradients, modules=modules, buffers=() if apart else rank.buffers)


def _part(module: ModuleSpan, is_apart: bool) -> ModuleSpan | None:
    """The parameters of a module that are apart, or the others; None where it has none."""
    if not module.apart_rows:
        return None if is_apart else module
    rows = _taken(module.rows, module.apart_rows, is_apart)
    trained = None if module.trained_rows is None else _taken(module.trained_rows, module.apart_rows, is_apart)
    size = sum(max(one, 1) * row_bytes for one, row_bytes in rows)
    own = module.apart_rows if is_apart else ()
    return derived(module, bytes=size, rows=rows, trained_rows=trained, apart_rows=own) if size else None


def _taken(rows: Rows, apart: Rows, is_apart: bool) -> Rows:
    """Those of ``rows`` that are among ``apart``, as often as there, or the others."""
    left, found = Counter(apart), list[tuple[int, int]]()
    for one in rows:
        is_in = left[one] > 0
        left[one] -= is_in
        if is_in == is_apart:
            found.append(one)
    return tuple(found)
