"""A traced step graph as JSON: a few kilobytes in place of megabytes of traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cdmpp.errors import DataError
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.step_graph import Gradient, Measured, Op, RankGraph, StepGraph
from cdmpp.trace.op_kind import kind_of_op

VERSION = 1
_WAITS = 4
"""Field of an op with the exchanges that it waits for."""
_PHASES = {"f": "forward", "b": "backward", "u": "update"}


def graph_to_dict(graph: StepGraph) -> dict[str, Any]:
    """Write a traced graph as lists by field; times in microseconds with three decimals, names once."""
    names = sorted({op.name for rank in graph.ranks for op in rank.ops})
    number = {name: place for place, name in enumerate(names)}
    return {
        "version": VERSION,
        "names": names,
        "ranks": [_rank_to_list(rank, graph, number) for rank in graph.ranks],
        "exchanges": [
            {
                "kind": one.kind,
                "bytes": one.bytes,
                "group": one.group,
                "wire": _us(one.measured_s),
                "spread": _us(one.spread_s),
                "on": [[rank, one.after[rank], _us(one.lag_s.get(rank, 0.0))] for rank in one.ranks],
            }
            for one in graph.exchanges
        ],
        "steps": [_us(seconds) for seconds in graph.measured.steps_s],
        "backend": graph.backend,
        "workers": graph.workers,
        "probed": [[kind, n_bytes, _us(seconds)] for kind, n_bytes, seconds in graph.measured.probed],
        "processor_share": round(graph.processor_share, 4),
        "waits": [[rank, _us(seconds)] for rank, seconds in sorted((graph.measured.waits_s or {}).items())],
        "unprofiled": None if graph.measured.unprofiled_s is None else _us(graph.measured.unprofiled_s),
    }


def graph_from_dict(stored: Mapping[str, Any]) -> StepGraph:
    """Read what ``graph_to_dict`` wrote; ``DataError`` for another version."""
    if stored.get("version") != VERSION:
        raise DataError(
            f"a traced step of version {stored.get('version')!r}: expected {VERSION}; read its traces again"
        )
    exchanges = tuple(
        Exchange(
            one["kind"],
            one["bytes"],
            {rank: after for rank, after, _ in one["on"]},
            _waiting(stored["ranks"], number, _WAITS),
            wire_s=1e-6 * one["wire"],
            lag_s={rank: 1e-6 * lag for rank, _, lag in one["on"]},
            group=one["group"],
            spread_s=1e-6 * one["spread"],
            blocks=_waiting(stored["ranks"], number, 6),
        )
        for number, one in enumerate(stored["exchanges"])
    )
    measured = Measured(
        tuple(1e-6 * step for step in stored["steps"]),
        {rank: 1e-6 * took for rank, took in stored["waits"]},
        None if stored["unprofiled"] is None else 1e-6 * stored["unprofiled"],
        tuple((kind, n_bytes, 1e-6 * took) for kind, n_bytes, took in stored["probed"]),
    )
    ranks = tuple(_rank_from_dict(rank, stored["names"]) for rank in stored["ranks"])
    share = stored.get("processor_share", 0.0)
    return StepGraph(ranks, exchanges, stored["backend"], stored["workers"], share, measured=measured)


def _rank_to_list(rank: RankGraph, graph: StepGraph, number: Mapping[str, int]) -> dict[str, Any]:
    waits = graph.waits(rank.rank)
    blocked: dict[int, list[int]] = {}
    for exchange, one in enumerate(graph.exchanges):
        for place in one.blocks.get(rank.rank, ()):
            blocked.setdefault(place, []).append(exchange)
    return {
        "rank": rank.rank,
        "ops": [
            [
                number[op.name], op.phase[0], _us(op.duration_s), _us(op.delay_s), list(waits.get(place, ())),
                _us(op.spread_s), *([blocked[place]] if place in blocked else []),
            ]
            for place, op in enumerate(rank.ops)
        ],
        "gradients": [
            [one.bytes, one.ready_after, *([one.dtype] if one.dtype != "float32" else [])]
            for one in reversed(rank.gradients)
        ],
        "tail": _us(rank.tail_s),
        **({"end": list(waits[len(rank.ops)])} if len(rank.ops) in waits else {}),
        **({"streams": [[op.stream, list(op.waits)] for op in rank.ops]} if _has_streams(rank) else {}),
    }  # fmt: skip


def _has_streams(rank: RankGraph) -> bool:
    return rank.streams not in ((), ("compute",))


def _rank_from_dict(stored: Mapping[str, Any], names: Sequence[str]) -> RankGraph:
    streams = stored.get("streams") or [["compute", []]] * len(stored["ops"])
    ops = tuple(
        Op(
            names[name], _PHASES[phase], 1e-6 * took, kind=kind_of_op(names[name], _PHASES[phase]),
            delay_s=1e-6 * delay, spread_s=1e-6 * spread, stream=stream, waits=tuple(waits),
        )
        for (name, phase, took, delay, _, spread, *_), (stream, waits) in zip(stored["ops"], streams, strict=True)
    )  # fmt: skip
    gradients = [Gradient(f"gradient {number}", *one) for number, one in enumerate(stored["gradients"])]
    return RankGraph(stored["rank"], ops, tuple(reversed(gradients)), tail_s=1e-6 * stored["tail"])


def _waiting(ranks: Sequence[Mapping[str, Any]], exchange: int, field: int) -> dict[int, tuple[int, ...]]:
    """Rank -> places of the ops that name an exchange in a field of theirs."""
    found = {}
    for rank in ranks:
        places = [place for place, op in enumerate(rank["ops"]) if len(op) > field and exchange in op[field]]
        if field == _WAITS and exchange in rank.get("end", ()):
            places.append(len(rank["ops"]))
        if places:
            found[rank["rank"]] = tuple(places)
    return found


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 3)
