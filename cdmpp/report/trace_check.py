"""The report on what was read of traces: files, categories, streams, steps, collectives, as they stand in the JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cdmpp.report.report import Column, Report, Table, Total
from cdmpp.trace.inventory import Inventory
from cdmpp.trace.rank_trace import RankTrace


def check_report(traces: Sequence[RankTrace]) -> Report:
    """Report ranks as rows; a trace without an answer has its reason among the warnings."""
    read = [trace.inventory for trace in traces]
    doubts = [text for trace in traces for text in (trace.refusal, *trace.inventory.warnings) if text]
    return Report(
        title=f"What was read of {len(read)} trace{'s' * (len(read) > 1)}",
        answer={"read": [asdict(one) for one in read]},
        totals=read_totals(read),
        tables=tuple(
            table
            for table in (_files(read), _categories(read), _streams(read), _steps(read), _collectives(read))
            if table.rows
        ),
        warnings=tuple(dict.fromkeys(doubts)),
    )


def read_totals(read: Sequence[Inventory]) -> tuple[Total, ...]:
    """Say what was read, in a line that heads every answer."""
    if not read:
        return ()
    device = {key: sum(getattr(one.device, key) for one in read) for key in ("events", "kept", "left_over", "lost")}
    parts = tuple(Total(name, device[key]) for name, key in
                  (("kept", "kept"), ("left over", "left_over"), ("lost", "lost")))  # fmt: skip
    marks = ", ".join(dict.fromkeys(one.steps_by or "no marks: one step" for one in read))
    totals = [Total("read", sum(one.events for one in read), note=f"events of {len(read)} files; steps by {marks}")]
    if device["events"]:
        totals.append(Total("device events", device["events"], parts=parts))
    return tuple(totals)


def _files(read: Sequence[Inventory]) -> Table:
    columns = (
        Column("rank", "rank"),
        Column("world_size", "of"),
        Column("events", "events"),
        Column("compute_s", "compute", "s", digits=4, meaning="Kernels run that are neither collectives nor copies."),
        Column("exposed_s", "exposed communication", "s", digits=4, meaning="Only collectives or copies run."),
        Column("idle_s", "idle", "s", digits=4, meaning="The device runs nothing, between its first and last event."),
        Column("source", "file", kind="name"),
    )
    return Table("Files", columns, [{**asdict(one), **asdict(one.breakdown)} for one in read])


def _rows(read: Sequence[Inventory], field: str) -> list[dict[str, Any]]:
    return [{"rank": one.rank, **asdict(row)} for one in read for row in getattr(one, field)]


def _categories(read: Sequence[Inventory]) -> Table:
    columns = (
        Column("rank", "rank"),
        Column("category", "category", kind="text"),
        Column("events", "events"),
        Column("kept", "kept", meaning="In a step that is answered from."),
        Column("left_over", "left over", meaning="Of no step, or of a kind that no question needs."),
        Column("lost", "lost", meaning="Broken, or in a step that is not whole."),
    )
    return Table("Spans by category", columns, _rows(read, "categories"))


def _streams(read: Sequence[Inventory]) -> Table:
    columns = (
        Column("rank", "rank"),
        Column("stream", "stream", kind="text"),
        Column("events", "events"),
        Column("busy_s", "busy", "s", digits=4),
        Column("overlaps", "overlapping", meaning="Events that begin before the one before has ended."),
    )
    return Table("Streams of devices", columns, _rows(read, "streams"))


def _steps(read: Sequence[Inventory]) -> Table:
    columns = (
        Column("rank", "rank"),
        Column("number", "step"),
        Column("host_s", "host", "s", digits=6, meaning="Between the marks of the host."),
        Column("device_s", "device", "s", digits=6, meaning="From its first event of a device to the end of the last."),
        Column("events", "device events"),
        Column("lost", "left out", kind="text", is_optional=True),
    )
    return Table("Steps", columns, _rows(read, "steps"))


def _collectives(read: Sequence[Inventory]) -> Table:
    columns = (
        Column("rank", "rank"),
        Column("kind", "collective", kind="text"),
        Column("count", "number"),
        Column("known", "with bytes"),
        Column("bytes", "bytes", "B"),
    )
    return Table("Collectives of the kept steps", columns, _rows(read, "collectives"))
