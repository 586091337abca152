"""The report on a traced training job: its ranks, its replay, the changes to it, why a step is long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cdmpp.errors import some
from cdmpp.report.charts import Bar, Bars
from cdmpp.report.replay import timeline_of
from cdmpp.report.report import Column, Report, Table, Total
from cdmpp.report.trace_check import read_totals
from cdmpp.steps.rank_spans import rank_spans
from cdmpp.steps.replay import Replay
from cdmpp.steps.step_graph import StepGraph
from cdmpp.trace.diagnosis import Cause
from cdmpp.trace.exchange_events import unknown
from cdmpp.trace.folder import MOST_OFF, Recording
from cdmpp.trace.inventory import Inventory
from cdmpp.trace.rank_trace import HOST
from cdmpp.trace.traced_step import TracedStep
from cdmpp.units import SHARE, percent

_UNPROFILED = "no steps without the profiler were measured here: cdmpp.trace.record does"


def trace_report(
    graph: StepGraph,
    base: Replay,
    recordings: Sequence[Recording] = (),
    settings: Mapping[str, str] | None = None,
    changed: Replay | None = None,
    causes: Sequence[Cause] | None = None,
    numbers: Sequence[int] | None = None,
    steps: Sequence[TracedStep] = (),
    read: Sequence[Inventory] = (),
    warnings: Sequence[str] = (),
) -> Report:
    """Report ranks as rows.

    Args:
        graph: what was traced.
        base: its replay.
        recordings: what was measured next to the traces of its ranks.
        settings: what a what-if changes, as it was given.
        changed: the replay of the changed graph.
        causes: why a step is long; None: left out.
        numbers: for each rank its number in the job; None: the same.
        steps: each traced step by itself.
        read: what was read of each file.
        warnings: what was read with a doubt.
    """
    ranks = _ranks(graph, base, numbers)
    bars = tuple(Bar(one.name, one.seconds, one.seconds / base.step_s) for one in causes or ())
    count = len(graph.measured.steps_s)
    shown, backend = base if changed is None else changed, graph.backend or "unknown back end"
    tables = [_rank_table(ranks), *([_step_table(steps)] if len(steps) > 1 else [])]
    tables += [] if causes is None else [_cause_table(causes, base)]
    return Report(
        title=f"{_counted(len(graph.ranks), 'rank')}, {backend}, {_counted(count, 'traced step')}",
        answer={
            "measured_s": graph.measured.step_s,
            "unprofiled_s": graph.measured.unprofiled_s,
            "steps_s": list(graph.measured.steps_s),
            "replayed_s": base.step_s,
            "each_step": [asdict(step) for step in steps],
            "read": [asdict(one) for one in read],
            "what_if_s": None if changed is None else changed.step_s,
            "ranks": [{key: value for key, value in row.items() if key != "operators"} for row in ranks],
            "exchanges": [
                {"kind": one.kind, "bytes": None if unknown([one]) else one.bytes, "group": one.group,
                 "wire_s": one.wire_s, "spread_s": one.spread_s}
                for one in graph.exchanges
            ],
            "causes": [asdict(cause) for cause in causes or ()],
        },
        totals=(*read_totals(read), *_totals(graph, base), *_overhead(recordings, graph, base),
                *_what_if(settings or {}, base, changed)),
        tables=tuple(tables),
        warnings=(*_off(graph, base, steps), *warnings,
                  *((_UNPROFILED,) if graph.measured.unprofiled_s is None else ())),
        timeline=timeline_of(rank_spans(shown)),
        charts=(Bars("Why a step is long", bars),) if bars else (),
    )  # fmt: skip


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _ranks(graph: StepGraph, base: Replay, numbers: Sequence[int] | None) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank.rank if numbers is None else numbers[rank.rank],
            "operators": sum(op.stream != HOST for op in rank.ops),
            "computes_s": base.busy_s[rank.rank],
            "gaps_s": base.rank_step_s(rank.rank) - base.busy_s[rank.rank] - base.waits_s[rank.rank],
            "stands_s": base.waits_s[rank.rank],
            "others_delay_s": (graph.measured.waits_s or {}).get(rank.rank),
        }
        for rank in graph.ranks
    ]


def _rank_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = (
        Column("rank", "rank"),
        Column("operators", "operators"),
        Column("computes_s", "compute", "s", digits=4),
        Column("gaps_s", "gaps", "s", digits=4, meaning="Between operators: the host, the launch."),
        Column("stands_s", "communication wait", "s", digits=4, meaning="The rank runs nothing, not even a gap."),
        Column("others_delay_s", "of which waiting for other ranks", "s", digits=4,
               meaning="Until the last rank came to an exchange."),
    )  # fmt: skip
    return Table("Ranks, seconds per step", columns, rows)


def _step_table(steps: Sequence[TracedStep]) -> Table:
    columns = (
        Column("number", "step"),
        Column("host_s", "host", "s", digits=4, meaning="Between the marks of the host."),
        Column("measured_s", "measured", "s", digits=4, meaning="As the host's marks say, or as its device needs."),
        Column("replayed_s", "replayed", "s", digits=4),
    )
    return Table("Each traced step", columns, [asdict(step) for step in steps])


def _off(graph: StepGraph, base: Replay, steps: Sequence[TracedStep]) -> list[str]:
    """Replays that are not near what was measured."""
    pairs = [(f"step {step.number}", step.measured_s, step.replayed_s) for step in steps]
    pairs.append(("the median step", graph.measured.step_s, base.step_s))
    far = [
        f"{name} {percent(replayed_s / measured_s - 1, signed=True)}"
        for name, measured_s, replayed_s in pairs
        if replayed_s is not None and measured_s and abs(replayed_s / measured_s - 1) > MOST_OFF
    ]
    return [f"the replay is not near what was measured: {some(far, ', ')}"] if far else []


def _cause_table(causes: Sequence[Cause], base: Replay) -> Table:
    columns = (
        Column("name", "cause", kind="text"),
        Column("seconds", "per step", "s", digits=4),
        Column("share", "share", SHARE),
        Column("advice", "what helps", kind="text"),
        Column("seen_in", "seen in", kind="text"),
    )
    rows = [
        {**asdict(cause), "share": cause.seconds / base.step_s, "seen_in": "; ".join(cause.spans)} for cause in causes
    ]
    note = "A step without the cause would be shorter by that much; causes overlap"
    return Table("Why a step is long", columns, rows, note)


def _totals(graph: StepGraph, base: Replay) -> tuple[Total, ...]:
    moved, wire_s = sum(one.bytes for one in graph.exchanges), sum(one.measured_s for one in graph.exchanges)
    off = base.step_s / graph.measured.step_s - 1
    hidden = len(unknown(graph.exchanges))
    bytes_moved = Total("moved", moved, "B") if moved or not hidden else Total("moved", "unknown")
    note = f"per step, {hidden:,} of them of unknown bytes" if hidden else "per step"
    return (
        Total("measured", graph.measured.step_s, "s", 4, note="per step"),
        Total("replayed", base.step_s, "s", 4, note=f"{percent(off, signed=True)} against it"),
        Total("exchanges", len(graph.exchanges), note=note,
              parts=(bytes_moved, Total("on the wire", wire_s, "s"))),
    )  # fmt: skip


def _overhead(recordings: Sequence[Recording], graph: StepGraph, base: Replay) -> tuple[Total, ...]:
    """The cost of profiling inside its window, and outside where that is known."""
    if graph.measured.unprofiled_s is None:
        return ()
    inside, off = graph.measured.step_s / graph.measured.unprofiled_s - 1, base.step_s / graph.measured.unprofiled_s - 1
    note = f"the replay is {percent(off, signed=True)} from it; the profiler adds {percent(inside)} in its window"
    totals = [Total("unprofiled", graph.measured.unprofiled_s, "s", 4, note=note)]
    pairs = [(one.before_s, one.after_s) for one in recordings]
    known = [(before, after) for before, after in pairs if before is not None and after is not None]
    if known:
        ratio = sum(after for _, after in known) / sum(before for before, _ in known) - 1
        totals.append(Total("before", known[0][0], "s", 4, note="the window of the profiler"))
        totals.append(
            Total("after", known[0][1], "s", 4, note=f"{percent(ratio, signed=True)} against before, over all ranks")
        )
    return tuple(totals)


def _what_if(settings: Mapping[str, str], base: Replay, changed: Replay | None) -> tuple[Total, ...]:
    if changed is None:
        return ()
    given = " ".join(f"{key}={value}" for key, value in settings.items())
    note = f"per step with {given}, {percent(changed.step_s / base.step_s - 1, signed=True)} against the replay"
    return (Total("what if", changed.step_s, "s", 4, note=note),)
