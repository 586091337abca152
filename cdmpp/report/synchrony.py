"""The report on a job under several synchronies: which is fastest, what each worker and each server does."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from cdmpp.report.charts import Bar, Bars, Chart, Plot, Point, points
from cdmpp.report.report import Column, Report, Table, Total
from cdmpp.steps.registry import to_dict
from cdmpp.synchrony.comparison import Comparison, JudgedSynchrony
from cdmpp.synchrony.limit import link_busy_s
from cdmpp.synchrony.loss.time_to_loss import assumption, loss_by_time
from cdmpp.units import RATE, SHARE

_LEVELS = (0.5, 0.95)
_SAME = 1e-6
"""Ends of an interval this near to each other are no interval."""
_STEP = 1.25
"""Factor from one point of a curve to the next."""
_NOTES = {
    "waiting": "The mean part of the time in which a worker stands still for others.",
    "communication": "The mean part of the time in which a worker stands still while it pushes, pulls or is added.",
    "link busy": "Part of the time in which the busier way of a server's link, or the medium, carries bytes.",
    "staleness": "Commits of others between a worker's pull and its own commit.",
}


def synchrony_report(found: Comparison, explained: str | None = None) -> Report:
    """Report a row a synchrony.

    Args:
        found: the answer.
        explained: text of the one whose workers and servers are listed; None: the best one.
    """
    best = found.best
    shown = best if explained is None else found.named(explained)
    tables = [_policies(found), _workers(found, shown), _servers(found, shown)]
    target = best.to_loss
    return Report(
        title=f"Best of {len(found.judged)} synchronies: {best.text}",
        answer=_answer(found),
        totals=(
            Total("throughput", best.outcome.samples_per_s, RATE, 4, note="samples, of all workers", **_interval(best)),
            *(() if target is None else (_loss(best),)),
            Total("waiting", best.outcome.waiting_share, SHARE),
            Total("limit", best.outcome.limit),
            Total("replayed", found.seconds, "s"),
        ),
        tables=tuple(tables),
        warnings=_warnings(found),
        charts=_charts(found),
        notes=_NOTES,
    )


def _interval(one: JudgedSynchrony) -> dict[str, Any]:
    low, high = one.interval_per_s
    return {} if low == high else {"interval": (0.8, low, high)}


def _loss(best: JudgedSynchrony) -> Total:
    to_loss = best.to_loss
    assert to_loss is not None
    low, high = to_loss.interval_s
    interval = None if math.isclose(low, high, rel_tol=_SAME) else (0.9, low, high)
    return Total(f"loss {to_loss.loss:g} after", to_loss.seconds, "s", interval=interval)


def _warnings(found: Comparison) -> tuple[str, ...]:
    warnings = list[str]()
    reached = [one for one in found.judged if one.to_loss is not None]
    if reached:
        words = assumption(found.staleness_penalty)
        warnings.append(words[0].upper() + words[1:])
    if late := [one.text for one in reached if one.to_loss is not None and one.to_loss.beyond_replay > 1]:
        warnings.append(
            f"{', '.join(late)} reach the loss after the {found.seconds:g} s that were replayed: their mean rate is "
            "carried on"
        )
    if found.curve is not None and any(one.to_loss is not None and one.to_loss.beyond_curve > 1 for one in reached):
        warnings.append(
            f"the loss lies beyond the last measured point of the loss curve, {found.curve.samples:,.0f} samples"
        )
    return tuple(warnings)


def _policies(found: Comparison) -> Table:
    columns = (
        Column("synchrony", "synchrony", kind="text"),
        Column("samples_per_s", "throughput", RATE, digits=4),
        Column("low_per_s", "80 % low", RATE, is_optional=True, rank=2),
        Column("high_per_s", "80 % high", RATE, is_optional=True, rank=2),
        Column("committed_per_s", "committed", RATE, digits=4, meaning="Samples a second that moved the parameters."),
        Column("to_loss_s", "to loss", "s", is_optional=True),
        Column("to_loss_low_s", "90 % low", "s", is_optional=True, rank=2),
        Column("to_loss_high_s", "90 % high", "s", is_optional=True, rank=2),
        Column("waiting", "waiting", SHARE, meaning=_NOTES["waiting"]),
        Column("communication", "communication", SHARE, meaning=_NOTES["communication"], rank=1),
        Column("commits_per_s", "commits", RATE, rank=1),
        Column("staleness", "staleness", meaning=_NOTES["staleness"]),
        Column("server_busy", "server busy", SHARE, rank=2, meaning="Of the server that adds for the longest time."),
        Column("link_busy", "link busy", SHARE, rank=1, meaning=f"{_NOTES['link busy']} The busiest server's."),
        Column("limit", "limit", kind="text"),
    )
    rows = [_policy(found, one) for one in found.judged]
    strong = next(place for place, one in enumerate(found.judged) if one is found.best)
    return Table("Synchronies", columns, rows, strong=strong)


def _policy(found: Comparison, one: JudgedSynchrony) -> dict[str, Any]:
    outcome = one.outcome
    low, high = one.interval_per_s
    row = {
        "synchrony": one.text,
        "samples_per_s": outcome.samples_per_s,
        "committed_per_s": outcome.committed_per_s,
        "low_per_s": None if low == high else low,
        "high_per_s": None if low == high else high,
        "waiting": outcome.waiting_share,
        "communication": outcome.communication_share,
        "commits_per_s": outcome.commits / outcome.seconds,
        "staleness": sum(worker.staleness_mean * worker.commits for worker in outcome.workers)
        / max(1, outcome.commits),
        "server_busy": max(server.busy_s for server in outcome.servers) / outcome.seconds,
        "link_busy": max(_links_busy(found, one)),
        "limit": outcome.limit,
    }
    if one.to_loss is not None:
        ends = (one.to_loss.seconds, *one.to_loss.interval_s)
        names = ("to_loss_s", "to_loss_low_s", "to_loss_high_s")
        row |= {name: None if math.isinf(end) else end for name, end in zip(names, ends, strict=True)}
        if math.isclose(ends[1], ends[2], rel_tol=_SAME):
            row |= dict.fromkeys(names[1:])
    return row


def _workers(found: Comparison, shown: JudgedSynchrony) -> Table:
    columns = (
        Column("worker", "worker", kind="text"),
        Column("samples_per_s", "throughput", RATE, digits=4),
        Column("batches_per_s", "batches", RATE, rank=1),
        Column("commits", "commits"),
        Column("dropped", "dropped", is_optional=True),
        Column("waiting", "waiting", SHARE),
        Column("communication", "communication", SHARE),
        Column("staleness", "staleness", rank=1),
        Column("staleness_p50", "p50", rank=2),
        Column("staleness_p95", "p95", rank=2),
        Column("staleness_max", "most", rank=2),
        Column("sent_bytes", "sent", "B", rank=1),
        Column("received_bytes", "received", "B", rank=1),
    )
    rows = []
    for number, (worker, share) in enumerate(zip(found.job.workers, shown.outcome.workers, strict=True)):
        seconds = shown.outcome.seconds
        half, most = (share.staleness_quantile(level) for level in _LEVELS)
        rows.append({
            "worker": f"{number}: {worker.batch_s:.3g} s a batch",
            "samples_per_s": share.samples / seconds,
            "batches_per_s": share.batches / seconds,
            "commits": share.commits,
            "dropped": share.dropped,
            "waiting": share.waiting_s / seconds,
            "communication": share.communication_s / seconds,
            "staleness": share.staleness_mean,
            "staleness_p50": half,
            "staleness_p95": most,
            "staleness_max": max(share.staleness, default=0),
            "sent_bytes": share.sent_bytes,
            "received_bytes": share.received_bytes,
        })  # fmt: skip
    return Table(f"Workers under {shown.text}", columns, rows)


def _servers(found: Comparison, shown: JudgedSynchrony) -> Table:
    columns = (
        Column("server", "server", kind="text"),
        Column("busy", "adds", SHARE),
        Column("link_busy", "link busy", SHARE, meaning=_NOTES["link busy"]),
        Column("queue", "queue", meaning="Mean number of commits that wait for it to add them, or are being added."),
        Column("received_bytes", "received", "B"),
        Column("sent_bytes", "sent", "B"),
    )
    rows = [
        {
            "server": str(number),
            "busy": one.busy_s / shown.outcome.seconds,
            "link_busy": link_busy,
            "queue": one.queue,
            "received_bytes": one.received_bytes,
            "sent_bytes": one.sent_bytes,
        }
        for number, (one, link_busy) in enumerate(zip(shown.outcome.servers, _links_busy(found, shown), strict=True))
    ]
    return Table(f"Servers under {shown.text}", columns, rows)


def _links_busy(found: Comparison, one: JudgedSynchrony) -> list[float]:
    """For each server the part of the time in which its link is busy."""
    outcome = one.outcome
    return [link_busy_s(found.job, outcome, number) / outcome.seconds for number in range(len(outcome.servers))]


def _charts(found: Comparison) -> tuple[Chart, ...]:
    waiting = tuple(Bar(one.text, one.outcome.waiting_share) for one in found.judged)
    rates = tuple(Bar(one.text, one.outcome.samples_per_s) for one in found.judged)
    charts: list[Chart] = [
        Bars("Samples a second", rates, RATE),
        Bars("Waiting", waiting, SHARE, "Of the time of a worker, on average."),
    ]
    if found.curve is not None:
        series = {one.text: _line(one, found) for one in found.judged}
        picture = points("Loss against time", series, ("time", "s"), ("loss", ""), is_joined=True)
        charts.insert(0, Plot("Loss against time", picture, "By the assumption above."))
    return tuple(charts)


def _line(one: JudgedSynchrony, found: Comparison) -> list[Point]:
    """Points at about equal distances on an axis of logarithms."""
    assert found.curve is not None
    line = [(seconds, loss) for seconds, loss in loss_by_time(one.outcome, found.curve) if seconds > 0]
    kept, next_s = list[Point](), 0.0
    for seconds, loss in line:
        if seconds >= next_s:
            kept.append(Point(seconds, loss, f"{one.text}: loss {loss:.3g}"))
            next_s = seconds * _STEP
    return kept


def _answer(found: Comparison) -> dict[str, Any]:
    return {
        "seconds": found.seconds,
        "seed": found.seed,
        "bytes": found.job.bytes,
        "workers": [asdict(worker) for worker in found.job.workers],
        "loss_curve": None if found.curve is None else {"a": found.curve.a, "b": found.curve.b, "c": found.curve.c},
        "assumption": assumption(found.staleness_penalty),
        "best": found.best.text,
        "synchronies": [
            {
                **_policy(found, one),
                **_settings(one),
                "workers": [
                    {**row, "staleness_counts": dict(share.staleness)}
                    for row, share in zip(_workers(found, one).rows, one.outcome.workers, strict=True)
                ],
                "servers": _servers(found, one).rows,
            }
            for one in found.judged
        ],
    }


def _settings(one: JudgedSynchrony) -> dict[str, Any]:
    return {"settings": to_dict(one.synchrony)}
