"""The report on a training step on several ranks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from cdmpp.report.charts import Bar, Bars
from cdmpp.report.report import Column, Report, Table, Total
from cdmpp.report.timeline import TimelineSpan
from cdmpp.steps.step_replay import RankSpan, StepReplay
from cdmpp.units import SHARE

_SECONDS = {
    "forward_s": "", "backward_s": "", "update_s": "",
    "host_s": "Gaps between operations and what a step takes once, where nothing computes.",
    "exposed_s": "Communication while the rank neither computes nor is in a gap.",
    "waiting_s": "Nothing goes on: the rank waits for others.",
}  # fmt: skip

_MOST_PARTS = 4


def replay_report(replay: StepReplay) -> Report:
    """Report ranks as rows; neighbours that do the same share one."""
    whole_s = replay.iteration_s or 1.0
    chain = tuple(Bar(kind, seconds, seconds / whole_s, kind) for kind, seconds in replay.critical_s.items())
    return Report(
        title=f"{replay.ranks} ranks: {replay.strategy} over {replay.topology}, {replay.backend}, "
        f"by {replay.granularity}",
        answer=replay.to_dict(),
        totals=_totals(replay),
        tables=(_table(replay),),
        warnings=replay.warnings,
        timeline=timeline_of(replay.spans),
        charts=(Bars("The longest chain", chain),),
    )


def timeline_of(spans: Iterable[RankSpan]) -> tuple[TimelineSpan, ...]:
    """Make a process for each rank, a row for each of its streams."""
    return tuple(
        TimelineSpan(one.stream, one.name, one.kind, one.start_s, one.end_s, one.is_critical, f"rank {one.rank}")
        for one in spans
    )


def _totals(replay: StepReplay) -> tuple[Total, ...]:
    whole_s = replay.iteration_s or 1.0
    overlap, idle = (
        sum(getattr(one, what) for one in replay.shares) / len(replay.shares) for what in ("overlap", "idle")
    )
    chain = tuple(Total(kind, seconds / whole_s, SHARE) for kind, seconds in replay.critical_s.items())
    alone = (Total("one device by itself", replay.alone_s, "s"),)
    bounds = (Total("all communication hidden", replay.full_overlap_s, "s"), Total("none", replay.no_overlap_s, "s"))
    examples = replay.global_batch
    return (
        Total("step", replay.iteration_s, "s", 4),
        *(() if examples is None else (Total("global batch", examples, note="examples of all ranks in one step"),)),
        Total("speed-up", f"{replay.speed_up:.2f}", note=f"{replay.ranks} would be linear", parts=alone),
        Total("bounds", parts=bounds),
        Total("critical", parts=chain),
        Total("exchanges", replay.exchanges),
        Total("sent", replay.sent_bytes, "B", note="by the busiest rank"),
        Total("overlap", overlap, SHARE, note="of communication is hidden"),
        Total("exposed", replay.exposed_s, "s", note="communication of the rank where it is most"),
        Total("idle", idle, SHARE, note="of the devices' time"),
        *_memory(replay),
    )


def _memory(replay: StepReplay) -> tuple[Total, ...]:
    """The peak of the rank that holds most, with its largest parts."""
    if (most := replay.heaviest) is None:
        return ()
    parts = tuple(Total(name, size, "B") for name, size in [*most.part_bytes.items()][:_MOST_PARTS])
    return (Total("memory", most.peak_bytes, "B", parts=parts, note=f"of rank {most.rank}, which holds most"),)


def _table(replay: StepReplay) -> Table:
    columns = (
        Column("ranks", "ranks", kind="text"),
        *(Column(key, key.removesuffix("_s"), "s", meaning=meaning) for key, meaning in _SECONDS.items()),
        Column("overlap", "overlap", SHARE, meaning="Share of communication that is hidden."),
        Column("idle", "idle", SHARE, meaning="Share of the step in which the rank does not compute."),
    )
    rows = []
    for _, group in groupby(replay.table(), key=lambda row: [column.cell(row) for column in columns[1:]]):
        same = list(group)
        first, last = same[0]["rank"], same[-1]["rank"]
        rows.append({"ranks": f"{first}" if first == last else f"{first} to {last}", **same[0]})
    return Table("What the step of each rank is made of", columns, [_without(row, "rank") for row in rows])


def _without(row: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != key}
