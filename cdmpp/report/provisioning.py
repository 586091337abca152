"""The report on machines to buy: the chosen configuration, the others, what changes bring, the curve over replicas."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from cdmpp.plans.provisioning.question import ProvisioningQuestion
from cdmpp.plans.provisioning.replayed import job_of
from cdmpp.plans.provisioning.result import REPLAY, Provisioned, ProvisioningResult
from cdmpp.report.charts import Bar, Bars, Chart, Plot, Point, points
from cdmpp.report.report import Column, Report, Table, Total
from cdmpp.synchrony.limit import link_busy_s
from cdmpp.units import RATE, percent, quantity, rate

_NOTES = {
    "closed form": "A closed queueing network: replicas train, push and pull, and the links of the servers and their "
    "adding are its stations. It is ours, after the aims of Yan et al. (KDD 2015), whose formulas we have not read.",
    "replay": "200 commits of each replica, message by message; replicas begin one after another, and the second half "
    "counts.",
    "knee": "Replicas beyond which the servers set the pace.",
    "limit": "Compute, the slowest worker, the worker's link, the server's link or its adding: a server that is busy "
    "nearly always, else what most of the time between two commits goes into that nothing hides.",
}


def provisioning_report(found: ProvisioningResult) -> Report:
    """Report the configurations as rows."""
    best = found.best
    return Report(
        title=f"Best of {found.possible:,} configurations: {best.configuration.words}",
        answer=_answer(found),
        totals=_totals(found),
        tables=(_ranking(found), _changes(found), _front(found)),
        warnings=found.warnings,
        charts=_charts(found),
        notes=_NOTES,
    )


def _totals(found: ProvisioningResult) -> tuple[Total, ...]:
    best, one, link = found.best, found.best.configuration, found.question.link
    bought = f"{one.workers} train, {one.servers} are servers; {found.question.machines} allowed"
    works = f"the busiest part of a server works {percent(best.load)} of the time"
    others = (
        f"of {found.possible:,} configurations; {found.unfit:,} do not fit, the others are slower by a bound; "
        f"{found.replayed} replayed"
    )
    memory = Total("memory", best.memory_bytes, "B", note="of the machine that holds most")
    return (
        Total("throughput", best.samples_per_s, RATE, interval=(0.8, best.low, best.high), note=f"by {best.by}"),
        Total("machines", one.machines, note=bought),
        Total("limit", best.limit, note=works),
        Total("knee", f"{best.knee:.3g} replicas", note="beyond it the servers set the pace"),
        Total("batch", best.batch_s, "s", note="of a replica, as predicted or given"),
        Total(
            "link", 1 / link.beta_s if link.beta_s else math.inf, "B/s", note=f"{quantity(link.alpha_s, 's')} to start"
        ),
        *_of_replay(best),
        *(() if best.memory_bytes is None else (memory,)),
        Total("evaluated", found.evaluated, note=others),
    )


def _of_replay(best: Provisioned) -> tuple[Total, ...]:
    if best.outcome is None:
        return ()
    workers = best.outcome.workers
    stale = sum(one.staleness_mean for one in workers) / len(workers)
    return (
        Total("waiting", percent(best.outcome.waiting_share), note="of a replica's time, by replay"),
        Total("staleness", stale, note="updates of others that a commit has not seen, mean of the replay"),
    )


def _ranking(found: ProvisioningResult) -> Table:
    columns = (
        Column("rank", "#", kind="text"),
        Column("words", "configuration", kind="text"),
        Column("machines", "machines"),
        Column("samples_per_s", "examples/s", digits=4),
        Column("low", "80 % low", rank=2),
        Column("high", "80 % high", rank=2),
        Column("load", "server load", rank=1, meaning="Part of the time in which its busiest part works."),
        Column("knee", "knee", rank=1, meaning="Replicas beyond which the servers set the pace."),
        Column("memory_bytes", "memory", "B", is_optional=True, rank=2),
        Column("limit", "limit", kind="text"),
        Column("by", "by", kind="text", rank=3),
    )
    caption = "The first is the smallest that is within 1 % of the fastest"
    mixed = len({one.by for one in found.ranked}) > 1
    caption += "; replayed ones stand before those that only the closed form judges" if mixed else ""
    return Table("Configurations", columns, _rows(found.ranked), caption, strong=0)


def _rows(found: tuple[Provisioned, ...]) -> list[dict[str, Any]]:
    return [{"rank": str(place), **_row(one)} for place, one in enumerate(found, 1)]


def _row(one: Provisioned) -> dict[str, Any]:
    configuration = one.configuration
    kept = ("batch_s", "samples_per_s", "low", "high", "by", "formula_samples_per_s", "load", "limit", "memory_bytes")
    parts = {f"{name.replace(' ', '_').replace(chr(39), '')}_s": seconds for name, seconds in one.parts_s.items()}
    sizes = {**asdict(configuration), "workers": configuration.workers, "machines": configuration.machines}
    return {
        "words": configuration.words,
        **sizes,
        "knee": one.knee if math.isfinite(one.knee) else None,
        **{name: getattr(one, name) for name in kept},
        **parts,
    }


def _changes(found: ProvisioningResult) -> Table:
    rows = [
        {"name": one.name, "gain": one.gain, "gain_text": percent(one.gain, signed=True), "machines": one.machines}
        for one in found.changes
    ]
    columns = (
        Column("name", "change", kind="text"),
        Column("gain_text", "examples/s", kind="text"),
        Column("machines", "machines more"),
    )
    return Table("What a change brings", columns, rows, "All else as chosen, by closed form; the budget does not count")


def _front(found: ProvisioningResult) -> Table:
    columns = (
        Column("machines", "machines"),
        Column("words", "configuration", kind="text"),
        Column("samples_per_s", "examples/s", digits=4),
        Column("limit", "limit", kind="text"),
        Column("by", "by", kind="text"),
    )
    caption = (
        "The fastest of each number of machines by closed form, where it is over 1 % faster than with fewer; the best "
        "are replayed"
    )
    return Table("By budget", columns, [_row(one) for one in found.front], caption)


def _charts(found: ProvisioningResult) -> tuple[Chart, ...]:
    best, servers = found.best, found.best.configuration.servers
    series = {
        "with all else as chosen": [
            Point(replicas, speed, f"{replicas} replicas: {rate(speed)}") for replicas, speed in found.curve
        ],
        "chosen": [Point(best.configuration.replicas, best.formula_samples_per_s, best.configuration.words)],
    }
    picture = points("Examples a second against replicas", series, ("replicas", ""), ("examples/s", ""), False)
    note = f"By closed form, with {servers} server{'s' * (servers > 1)}; the knee is at {best.knee:.3g} replicas."
    bars = tuple(Bar(name, seconds) for name, seconds in best.parts_s.items())
    return Bars("Between two commits of a replica, by closed form", bars), Plot("Saturation", picture, note)


def _answer(found: ProvisioningResult) -> dict[str, Any]:
    question = found.question
    return {
        "machines": question.machines,
        "batch": question.batch,
        "synchrony": question.synchrony.name,
        "commit_every": question.commit_every,
        "spread": question.spread,
        "link": {"start_s": question.link.alpha_s, "seconds_per_byte": question.link.beta_s},
        "memory_limit_bytes": question.memory_limit_bytes,
        "possible": found.possible,
        "unfit": found.unfit,
        "evaluated": found.evaluated,
        "replayed": found.replayed,
        "configurations": [_row(one) | _replay(question, one) for one in found.ranked],
        "changes": [asdict(one) for one in found.changes],
        "front": [_row(one) for one in found.front],
        "curve": [{"replicas": replicas, "samples_per_s": speed} for replicas, speed in found.curve],
        "warnings": list(found.warnings),
    }


def _replay(question: ProvisioningQuestion, one: Provisioned) -> dict[str, Any]:
    if one.by != REPLAY or one.outcome is None:
        return {}
    outcome, job = one.outcome, job_of(question, one.configuration)
    return {
        "replay": {
            "seconds": outcome.seconds,
            "waiting_share": outcome.waiting_share,
            "communication_share": outcome.communication_share,
            "limit": outcome.limit,
            "server_busy_share": [server.busy_s / outcome.seconds for server in outcome.servers],
            "server_link_busy_share": [
                link_busy_s(job, outcome, number) / outcome.seconds for number in range(len(outcome.servers))
            ],
            "server_queue": [server.queue for server in outcome.servers],
            "staleness_mean": [worker.staleness_mean for worker in outcome.workers],
        }
    }
