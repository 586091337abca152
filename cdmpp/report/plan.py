"""The report on the plan that a search found."""

from __future__ import annotations

from cdmpp.plans.search_result import SearchResult
from cdmpp.report.charts import Bar, Bars
from cdmpp.report.report import Column, Report, Table, Total
from cdmpp.units import SHARE


def plan_report(found: SearchResult, of: str = "") -> Report:
    """Report the proposals of the search as rows, as they were tried; ``of`` names the plan where it began."""
    changes = found.plan.changes(found.default)
    times = (Bar("default", found.default_cost.batch_s), Bar("plan", found.cost.batch_s))
    return Report(
        title=f"{f'Settings of {of}' if of else 'Plan'}: {', '.join(changes) if changes else 'the default, as it is'}",
        answer=found.to_dict(),
        totals=_totals(found),
        tables=(_table(found),),
        warnings=found.warnings,
        charts=(Bars("Time per batch", times),),
        code=found.settings,
    )


def _totals(found: SearchResult) -> tuple[Total, ...]:
    limit, held = found.memory_limit_bytes, found.default_cost.peak_bytes
    is_over = limit is not None and held is not None and held > limit
    default = (Total("by default", found.default_cost.batch_s, "s", 4),)
    totals = [
        Total("batch", found.cost.batch_s, "s", 4, parts=default),
        Total("gain", found.gain, SHARE, note="over what does not fit" if is_over else ""),
    ]
    if found.peak_bytes is not None:
        allowed = () if limit is None else (Total("allowed", limit, "B"),)
        totals.append(Total("memory", found.peak_bytes, "B", parts=(Total("by default", held, "B"), *allowed)))
    return tuple(totals)


def _table(found: SearchResult) -> Table:
    columns = (
        Column("proposal", "proposal", kind="text"),
        Column(
            "cause", "bottleneck", kind="text", meaning="Part of the longest chain that the proposal is to shorten."
        ),
        Column(
            "change",
            "best candidate",
            kind="text",
            meaning="How the best plan of the proposal differs from the one before.",
        ),
        Column("after_s", "time per batch", "s", digits=4),
        Column("gain", "gain", SHARE, meaning="Examples per second over those of the plan before, less 1."),
        Column("peak_bytes", "memory", "B"),
        Column("is_taken", "taken", kind="text"),
    )
    rows = [
        {**row, "gain": row["before_s"] / row["after_s"] - 1 if row["after_s"] else 0.0}
        for row in found.to_dict()["steps"]
    ]
    return Table("What was tried, one after the other", columns, rows)
