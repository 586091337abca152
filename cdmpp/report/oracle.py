"""The report on all plans for a network: the ranking, what refuses the others, the Pareto front, the scaling curve."""

from __future__ import annotations

import math
from typing import Any

from cdmpp.plans.oracle import STEPS, OracleResult, RankedPlan
from cdmpp.plans.plan import Plan
from cdmpp.plans.unlike.question import UnlikeQuestion
from cdmpp.plans.unlike.stage_rows import stage_rows
from cdmpp.report.charts import Bar, Bars, Chart, Plot, Point, points
from cdmpp.report.report import Column, Report, Table, Total
from cdmpp.units import RATE, quantity


def oracle_report(found: OracleResult, price: float | None = None, explained: str | None = None) -> Report:
    """Report the ranked plans as rows.

    Args:
        found: the answer.
        price: money for a device and an hour; None: no money is shown.
        explained: the plan that is compared with the best one, as ``OracleResult.named`` takes it.
    """
    best, question = found.best, found.question
    tables = [_ranking(found, price)]
    if explained is not None:
        tables.append(_explanation(found, explained))
    if isinstance(question, UnlikeQuestion):
        tables.append(_stages(question, best.plan))
    tables.append(_front(found, price))
    if found.rejected:
        rows = [{"reason": reason, "count": count} for reason, count in found.rejected.items()]
        columns = (Column("reason", "reason", kind="text"), Column("count", "plans"))
        tables.append(Table("Plans that are not listed", columns, rows))
    return Report(
        title=f"Best of {len(found.judged.plans):,} plans: {best.words}",
        answer=_answer(found, price),
        totals=(
            Total("step", best.step_s, "s", 4, interval=(0.8, best.low_s, best.high_s), note=f"by {best.by}"),
            Total("throughput", question.global_batch / best.step_s, RATE, note="examples"),
            Total("batch", question.global_batch, note="examples of all devices in one step"),
            *_memory(found),
            Total("device-hours", best.device_hours, note=f"of {STEPS:,} steps"),
            *(() if price is None else (Total("money", best.device_hours * price, note=f"of {STEPS:,} steps"),)),
            Total("limit", best.limit, note=best.next_limit and f"next: {best.next_limit}"),
        ),
        tables=tuple(tables),
        warnings=_warnings(found),
        charts=_charts(found),
        notes=_NOTES,
    )


_MOST_POINTS, _MOST_LINES = 300, 7
"""Plans next to the front; lines of the scaling curve: the page has nine colours, and the front takes two."""
_NOTES = {
    "closed form": "All plans at once, by formulas: the slowest stage sets the pace, and exchanges hide behind what is "
    "computed meanwhile.",
    "replay": "One step of the plan, kernel by kernel and message by message.",
    "limit": "What most of the step goes into: compute, bubble (stages wait for each other), start-up (the time of "
    "messages that does not depend on their size), bandwidth, halo, weight update or host; the input pipeline where "
    "ranks wait for examples.",
}


def _warnings(found: OracleResult) -> tuple[str, ...]:
    """Warnings of the answer, and of what ranks hold under plans that are shown whatever the model is."""
    own = (one.plan.strategy.memory_warnings() for one in found.shown if one.plan.ranks > 1)
    return tuple(dict.fromkeys((*found.warnings, *(warning for many in own for warning in many))))


def _memory(found: OracleResult) -> tuple[Total, ...]:
    limit = found.question.memory_limit_bytes
    allowed = () if limit is None else (Total("allowed", limit, "B"),)
    return (Total("memory", found.best.memory_bytes, "B", parts=allowed, note="of the device that holds most"),)


def _ranking(found: OracleResult, price: float | None) -> Table:
    columns = (
        Column("rank", "#", kind="text"),
        Column("words", "plan", kind="text"),
        Column("step_s", "step", "s", digits=4),
        Column("low_s", "80 % low", "s", rank=2),
        Column("high_s", "80 % high", "s", rank=2),
        Column("memory_bytes", "memory", "B"),
        Column("device_hours", "device-hours", meaning=f"Of {STEPS:,} steps."),
        Column("money", "money", is_optional=True, meaning=f"Of {STEPS:,} steps, at the given price."),
        Column("limit", "limit", kind="text"),
        Column("next_limit", "next", kind="text", is_optional=True, rank=1,
               meaning="What binds next with the same strategies, and at how many devices; of the best plan's."),
        Column("waits_for", "waits for", kind="text", is_optional=True, rank=1,
               meaning="The rank that waits least, for which others wait, and its device."),
        Column("by", "by", kind="text", rank=3),
    )  # fmt: skip
    rows = [_row(one, place, price) for place, one in enumerate(found.shown, 1)]
    mixed = len({one.by for one in found.shown}) > 1
    caption = "Replayed plans stand before those that only the closed form judges" if mixed else ""
    return Table("Plans, fastest first", columns, rows, caption, strong=0)


def _row(one: RankedPlan, place: int, price: float | None) -> dict[str, Any]:
    memory = None if math.isnan(one.memory_bytes) else one.memory_bytes
    money = None if price is None else one.device_hours * price
    shown = {name: getattr(one, name) for name in ("words", "combination", "step_s", "low_s", "high_s", "limit")}
    parts = {f"{name.replace(' ', '_').replace('-', '_')}_s": seconds for name, seconds in one.terms.items()}
    return {
        "rank": str(place), **shown, "next_limit": one.next_limit or None, "by": one.by,
        "waits_for": one.waits_for or None, "memory_bytes": memory,
        "device_hours": one.device_hours, "money": money, **parts,
    }  # fmt: skip


def _stages(question: UnlikeQuestion, plan: Plan) -> Table:
    columns = (
        Column("stages", "stage", kind="text", is_optional=True),
        Column("device", "device", kind="text"),
        Column("ranks", "ranks"),
        Column("begins", "begins with", kind="text", is_optional=True, rank=1),
        Column("micro_batches", "micro-batches", meaning="Forward passes of each of these ranks in a step."),
        Column("examples", "examples", meaning="Of each of these ranks in a step.", rank=2),
        Column("busy_s", "computes", "s"),
        Column("waits_s", "waits", "s", meaning="For exchanges, and for those who take part in them."),
        Column("memory_bytes", "memory", "B"),
        Column("limit_bytes", "allowed", "B", is_optional=True),
    )
    rows = [
        {**vars(one), "stages": one.stages or None, "begins": one.begins or None} for one in stage_rows(question, plan)
    ]
    return Table("What each device does under the best plan", columns, rows)


def _front(found: OracleResult, price: float | None) -> Table:
    rows = [
        {**vars(one), "device_hours": one.device_hours, "money": None if price is None else one.device_hours * price}
        for one in found.front
    ]
    columns = (
        Column("words", "plan", kind="text"),
        Column("ranks", "devices"),
        Column("step_s", "step", "s", digits=4),
        Column("memory_bytes", "memory", "B"),
        Column("device_hours", "device-hours"),
        Column("money", "money", is_optional=True),
    )
    caption = "By closed form: no other plan is as fast, holds as little and takes as few device-hours"
    return Table("Pareto front of time, memory and device-hours", columns, rows, caption)


def _explanation(found: OracleResult, explained: str) -> Table:
    plan = found.named(explained)
    rows = [
        {"term": name, "own_s": own_s, "best_s": best_s, "more_s": own_s - best_s}
        for name, own_s, best_s in found.explain(explained)
    ]
    columns = (
        Column("term", "part of the step", kind="text"),
        Column("own_s", "this plan", "s"),
        Column("best_s", "the best plan", "s"),
        Column("more_s", "more", "s"),
    )
    formula = sum(plan.terms.values()) / sum(found.best.terms.values())
    ratio = plan.step_s / found.best.step_s if plan.by == found.best.by else formula
    caption = f"By closed form, which says {formula:.2f} times"
    return Table(f"Why {plan.words} takes {ratio:.2f} times as long as the best plan", columns, rows, caption)


def _charts(found: OracleResult) -> tuple[Chart, ...]:
    charts: list[Chart] = [
        Bars("The best plan, by closed form", tuple(Bar(name, value) for name, value in found.best.terms.items()))
    ]
    if found.front:
        series = {
            "others": _others(found),
            "on the front": [  # drawn last, so that no other plan hides it
                Point(one.memory_bytes, one.step_s, f"{one.words}: {quantity(one.step_s, 's')}") for one in found.front
            ],
        }
        note = "By closed form. On the front no other plan is as fast, holds as little and takes as few device-hours."
        picture = points("Step against memory", series, ("memory", "B"), ("step", "s"), False)
        charts.append(Plot("Pareto front", picture, note))
    if found.scaling:
        charts.append(_scaling(found))
    return tuple(charts)


def _others(found: OracleResult) -> list[Point]:
    """Some of the plans that fit and are not on the front, spread over the ranking."""
    costs, plans, order = found.judged.costs, found.judged.plans, found.judged.order()
    on = {(one.memory_bytes, one.step_s) for one in found.front}
    rows = order[:: -(-len(order) // _MOST_POINTS)]
    made = [
        Point(float(costs.memory_bytes[row]), float(costs.step_s[row]), plans.combinations[plans.combination[row]].name)
        for row in rows
    ]
    return [one for one in made if (one.x, one.y) not in on]


def _scaling(found: OracleResult) -> Plot:
    best_s = dict[str, float]()
    for one in found.scaling:
        if not math.isnan(one.step_s):
            best_s[one.combination] = min(one.step_s, best_s.get(one.combination, math.inf))
    names = sorted(best_s, key=lambda name: best_s[name])[:_MOST_LINES]
    series = {
        name: [
            Point(one.ranks, one.step_s, f"{name} on {one.ranks}: {quantity(one.step_s, 's')}, limit {one.limit}")
            for one in found.scaling
            if one.combination == name and not math.isnan(one.step_s)
        ]
        for name in names
    }
    picture = points("Step against devices", series, ("devices", ""), ("step", "s"), True)
    note = f"The best plan of each kind, by closed form; {found.question.global_batch} examples a step."
    return Plot("Scaling", picture, note)


def _answer(found: OracleResult, price: float | None) -> dict[str, Any]:
    question = found.question
    return {
        "ranks": question.ranks,
        "global_batch": question.global_batch,
        "memory_limit_bytes": question.memory_limit_bytes,
        "price_per_hour": price,
        "plans_judged": len(found.judged.plans),
        "plans": [
            {**_row(one, place, price), "plan": one.plan.to_dict()} for place, one in enumerate(found.shown, 1)
        ],
        "front": [{**vars(one), "device_hours": one.device_hours} for one in found.front],
        "rejected": dict(found.rejected),
        "scaling": [
            {**vars(one), "step_s": None if math.isnan(one.step_s) else one.step_s,
             "memory_bytes": None if math.isnan(one.memory_bytes) else one.memory_bytes}
            for one in found.scaling
        ],
        "warnings": list(_warnings(found)),
    }  # fmt: skip
