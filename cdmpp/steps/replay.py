"""Replay: one training step on several ranks from the work of each, a scheme and a fabric."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.collectives.collective import Collective
from cdmpp.collectives.fabric import Fabric
from cdmpp.errors import CdmppError
from cdmpp.simulate.engine import simulate
from cdmpp.simulate.intervals import Interval, length_s, union, without
from cdmpp.simulate.task import check_tasks
from cdmpp.simulate.timeline import Span, Timeline
from cdmpp.steps.bounds import alone_s, communication_s, compute_s
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.exchange_tasks import check_detail, place_of
from cdmpp.steps.rank_tasks import HOST, step_ends, step_of, step_tasks, title
from cdmpp.steps.scheme import Scheme
from cdmpp.steps.step_replay import RankShare, RankSpan, StepReplay
from cdmpp.steps.work import PHASES, RankWork

STEPS, SHOWN = 4, 2
"""So many are replayed, and the third is told: ranks have found their order, and those ahead are in the next one."""


def replay(works: Sequence[RankWork], scheme: Scheme, fabric: Fabric, detail: str = "whole") -> StepReplay:
    """One training step in steady state (after the replayer of dPRO, MLSys'22, section 4).

    Args:
        works: of each rank, from rank 0 on; they may differ in speed, but not in what they exchange.
        scheme: how ranks share the work.
        fabric: what they exchange over.
        detail: ``whole``: a collective is one task, which starts when the last rank arrives. ``chunks``: each is
            expanded into the steps of its rings, which share links; for 16 ranks at most.

    Raises:
        CdmppError: ranks that do not match each other or the fabric, a detail that does not exist.
    """
    if len(works) != fabric.ranks:
        raise CdmppError(f"work of {len(works)} ranks on {fabric.ranks} ranks of {fabric.name}: give one RankWork each")
    check_detail(detail, fabric.ranks)
    cut = [work.cut_over(scheme.shards(len(works))) for work in works]
    exchanges = scheme.exchanges(cut) if len(cut) > 1 else ()
    pushed = sum(one.kind == "push_pull" for one in exchanges)
    check_work(sum(len(work.operations) for work in cut) + 2 * pushed * len(cut), fabric.ranks)
    timeline = simulate(step_tasks(cut, exchanges, fabric, STEPS, detail), rates=fabric.rates)
    ends = step_ends(timeline)
    window = ends[SHOWN - 1], ends[SHOWN]
    last = max((span for name, span in timeline.spans.items() if step_of(name) == SHOWN), key=lambda span: span.end_s)
    path = timeline.path_to(last)
    computed_s, exchanged_s = compute_s(works, scheme, fabric), communication_s(works, scheme, fabric)
    return StepReplay(
        scheme.name,
        fabric.name,
        fabric.backend,
        detail,
        window[1] - window[0],
        tuple(_share(rank, spans, window) for rank, spans in enumerate(_by_rank(timeline, len(cut)))),
        _critical_s(path, window),
        _rank_spans(timeline, window[0], {span.task.name for span in path}),
        len(exchanges),
        _sent_bytes(exchanges, fabric),
        alone_s(works, fabric),
        computed_s + exchanged_s,
        max(computed_s, exchanged_s),
        _warnings(exchanges, fabric),
    )


def check_work(operations: int, ranks: int) -> None:
    """``CdmppError`` where steps of so many operations, of all ranks together, are too many to replay."""
    check_tasks(STEPS * operations, f"replaying {STEPS} steps of {ranks:,} ranks", "take fewer ranks")


def _critical_s(path: Sequence[Span], window: Interval) -> dict[str, float]:
    """Kind -> seconds on the path, most first; what lies between two spans is a gap."""
    found: dict[str, float] = {}
    until_s = window[0]
    for span in path:
        for kind, begin_s, end_s in (("gap", until_s, span.start_s), (span.task.label, span.start_s, span.end_s)):
            if end_s > max(begin_s, window[0]):
                found[kind] = found.get(kind, 0.0) + end_s - max(begin_s, window[0])
        until_s = max(until_s, span.end_s)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _by_rank(timeline: Timeline, ranks: int) -> list[list[Span]]:
    """Spans on any stream of each rank."""
    found: list[list[Span]] = [[] for _ in range(ranks)]
    for span in timeline.spans.values():
        for rank in {place_of(resource)[0] for resource in span.task.resources}:
            found[rank].append(span)
    return found


def _share(rank: int, spans: Sequence[Span], window: Interval) -> RankShare:
    compute, host, exchanged = list[Interval](), list[Interval](), list[Interval]()
    phase_s = dict.fromkeys(PHASES, 0.0)
    for span in spans:
        begin_s, end_s = max(span.start_s, window[0]), min(span.end_s, window[1])
        kind = span.task.label
        if kind in PHASES:
            compute.append((begin_s, end_s))
            host.append((max(span.end_s, window[0]), min(span.end_s + span.task.gap_s, window[1])))
            phase_s[kind] += max(0.0, end_s - begin_s)
        else:
            (host if kind == HOST else exchanged).append((begin_s, end_s))
    compute, host, exchanged = union(compute), union(host), union(exchanged)
    gaps = without(host, compute)
    busy = union([*compute, *gaps])
    exposed = without(exchanged, busy)
    left_s = window[1] - window[0] - length_s(busy) - length_s(exposed)
    return RankShare(
        rank, phase_s, length_s(compute), length_s(gaps), length_s(exchanged), length_s(exposed), max(0.0, left_s)
    )


def _rank_spans(timeline: Timeline, start_s: float, critical: set[str]) -> tuple[RankSpan, ...]:
    return tuple(
        RankSpan(
            *place_of(resource), title(name), span.task.label, span.start_s - start_s, span.end_s - start_s,
            span.task.gap_s, name in critical,
        )
        for name, span in timeline.spans.items()
        if step_of(name) == SHOWN
        for resource in span.task.resources
    )  # fmt: skip


def _sent_bytes(exchanges: Sequence[Exchange], fabric: Fabric) -> float:
    """By the rank that sends most."""
    sent = [0.0] * fabric.ranks
    for exchange in exchanges:
        if exchange.kind == "push_pull":
            for rank in range(fabric.ranks):
                sent[rank] += exchange.bytes * (fabric.ranks - 1 if rank == exchange.server else 1)
        else:
            each = Collective(exchange.kind, exchange.bytes, fabric.ranks, fabric.backend).traffic_bytes
            sent = [own + each for own in sent]
    return max(sent)


def _warnings(exchanges: Sequence[Exchange], fabric: Fabric) -> tuple[str, ...]:
    """Of the collective model, at the largest exchange of each kind."""
    largest = {one.kind: one.bytes for one in sorted(exchanges, key=lambda one: one.bytes)}
    asked = [
        fabric.near(Collective("send_recv", size, 2, fabric.backend))
        if kind == "push_pull"
        else fabric.whole(Collective(kind, size, fabric.ranks, fabric.backend))
        for kind, size in largest.items()
    ]
    return tuple(dict.fromkeys(flag for one in asked for flag in one.flags))
