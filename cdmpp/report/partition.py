"""The report on a partition: what each schedule makes of it, the stages of the fastest, how good the cuts are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cdmpp.partition.chain import Chain
from cdmpp.partition.outcome import LOCKS
from cdmpp.partition.question import PartitionResult, ScheduledPartition
from cdmpp.partition.stream_tasks import Worker
from cdmpp.report.charts import Bar, Bars, Chart
from cdmpp.report.report import Column, Report, Table, Total
from cdmpp.report.timeline import TimelineSpan
from cdmpp.units import RATE, SHARE, quantity

_KEYS = {lock: lock.replace(" ", "_") for lock in LOCKS}
_NOTES = {
    "schedule": "sequential: one micro-batch at a time. gpipe, 1f1b: each step ends with a flush. pipedream: 1f1b "
    "without flushes, weights stashed. 2bw: without flushes, two versions of the weights. delayed: a stage updates "
    "with the gradient of an earlier micro-batch. side-by-side: delayed, with both passes of a stage at the same time "
    "on two workers, each as fast as the device.",
    "forward lock": "Part of their time in which workers wait for results of earlier stages.",
    "backward lock": "Part of their time in which workers wait for gradients of later stages.",
    "update lock": "Part of their time in which workers wait for an update, or for what must end before it.",
    "staleness": "Updates of a stage between a forward pass and the update with its gradient, of the stage where it is "
    "most. 0: as training on one device. More lowers the largest learning rate that is stable.",
    "versions": "Versions of its weights that a stage holds, where it is most.",
    "bound": "The least time of the slowest stage that is proven: no cut is faster.",
}


def partition_report(found: PartitionResult) -> Report:
    """Report schedules as rows, fastest first; one timeline has all of them."""
    best, parts = found.best, len(found.best.chain.parts)
    many = f"{parts} stage{'s' * (parts > 1)} on {best.chain.devices} of {_devices(len(found.question.devices))}"
    tables = [_schedules(found), _stages(best), _cuts(found)]
    shown_s = min(one.outcome.window_s[1] - one.outcome.window_s[0] for one in found.ranked)
    if found.refused:
        rows = [{"schedule": name, "reason": reason} for name, reason in found.refused.items()]
        columns = (Column("schedule", "schedule", kind="text"), Column("reason", "why it cannot be", kind="text"))
        tables.append(Table("Schedules that cannot be", columns, rows))
    return Report(
        title=f"Best partition: {many}, {best.schedule.name}",
        answer=_answer(found),
        totals=_totals(found),
        tables=tuple(tables),
        warnings=found.warnings,
        timeline=tuple(span for one in found.ranked for span in _timeline(one, shown_s)),
        charts=_charts(found),
        notes=_NOTES,
    )


def _totals(found: PartitionResult) -> tuple[Total, ...]:
    best, question, fresh = found.best, found.question, found.fresh
    alone, chain = question.alone, best.chain
    fits = "" if alone.fits else f", which does not fit there: {quantity(alone.missing_bytes, 'B')} are missing"
    devices = f"{_devices(chain.devices)} would be linear if all were as fast"
    of = f"over {alone.names()[0][0]} by itself{fits}; {devices}"
    same: tuple[Total, ...] = ()
    if best.staleness and fresh is not None:
        note = f"{fresh.schedule.name}: gradients of the weights that they change, as on one device"
        same = (Total("without staleness", fresh.step_s, "s", 4, note=note),)
    return (
        Total("step", best.step_s, "s", 4, note=f"by replay; {quantity(best.closed_s, 's')} by closed form"),
        Total("throughput", question.examples / best.step_s, RATE, note="examples"),
        Total("batch", question.examples,
              note=f"examples of a step: {question.micro_batches} micro-batches of {question.micro_batch}"),
        Total("speed-up", f"{found.speed_up(best):.2f}", note=of),
        Total("staleness", best.staleness, note="updates, of the stage where it is most"),
        *same,
        Total("memory", best.peak_bytes, "B", note="of the device that holds most"),
        Total("cuts", _proof(best)),
        *((Total("merged", _merged(best)),) if _merged(best) else ()),
    )  # fmt: skip


def _proof(one: ScheduledPartition) -> str:
    partition = one.partition
    how = f"by {partition.method}" + (f" over {partition.sets:,} sets of layers" if partition.sets else "")
    slowest = f"slowest stage {quantity(partition.chain.slowest_s, 's')} a micro-batch"
    told = f"{slowest}, at most {partition.gap:.1%} above the best, {how}"
    if partition.is_proven:
        told = f"{slowest}, proven optimal {how}"
    if one.chain is partition.chain:
        return told
    return f"{told}; fewer messages are faster by replay: {quantity(one.chain.slowest_s, 's')}"


def _merged(one: ScheduledPartition) -> str:
    left = len(one.chain.problem.devices) - one.chain.devices
    if not left:
        return ""
    told = f"{left} device{'s have' if left > 1 else ' has'} no stage"
    whole_s, slowest_s = one.partition.all_devices_s, one.chain.slowest_s
    if whole_s is None:
        return told
    if whole_s == float("inf"):
        return f"{told}: with a stage on each nothing fits"
    times = f"{whole_s / slowest_s:.2f} times as long"
    return f"{told}: with a stage on each the slowest takes {quantity(whole_s, 's')}, {times}"


def _schedules(found: PartitionResult) -> Table:
    columns = (
        Column("schedule", "schedule", kind="text", meaning=_NOTES["schedule"]),
        Column("step_s", "step", "s", digits=4),
        Column("closed_form_s", "closed form", "s", digits=4, rank=2, meaning="Least seconds of a step by formula."),
        Column("speed_up", "speed-up", digits=3),
        Column("stages", "stages"),
        Column("workers", "workers", rank=1),
        Column("computing", "computing", SHARE, rank=1),
        Column("sending", "sending", SHARE, is_optional=True, rank=1),
        *(Column(key, lock, SHARE, meaning=_NOTES[lock]) for lock, key in _KEYS.items()),
        Column("peak_bytes", "memory", "B", meaning="Of the device that holds most."),
        Column("stash_bytes", "stash", "B", meaning="Inputs and activations that the stage with most of them keeps."),
        Column("versions", "versions", meaning=_NOTES["versions"]),
        Column("staleness", "staleness", meaning=_NOTES["staleness"]),
        Column("recomputed", "forward again", kind="text", is_optional=True,
               meaning="Stages keep their inputs only, and run forward passes again."),
    )  # fmt: skip
    rows = [_row(found, one) for one in found.ranked]
    caption = (
        "What needs two workers a device stands last" if any(row["workers"] > row["devices"] for row in rows) else ""
    )
    return Table("Schedules, fastest first", columns, rows, caption, strong=0)


def _row(found: PartitionResult, one: ScheduledPartition) -> dict[str, Any]:
    costs, outcome = one.chain.costs, one.outcome
    return {
        "schedule": one.schedule.name,
        "step_s": one.step_s,
        "closed_form_s": one.closed_s,
        "samples_per_s": found.question.examples / one.step_s,
        "speed_up": found.speed_up(one),
        "stages": len(costs),
        "devices": one.chain.devices,
        "workers": len(outcome.shares),
        "computing": outcome.computing,
        "sending": outcome.sending,
        **{key: outcome.waiting(lock) for lock, key in _KEYS.items()},
        "peak_bytes": one.peak_bytes,
        "stash_bytes": max(cost.stash_bytes for cost in costs),
        "versions": max(cost.versions for cost in costs),
        "staleness": one.staleness,
        "recomputed": "yes" if one.chain.problem.recompute else "",
        "slowest_stage_s": one.chain.slowest_s,
        "bound_s": one.partition.bound_s,
        "is_proven": one.partition.is_proven,
    }


def _stages(one: ScheduledPartition) -> Table:
    columns = (
        Column("stage", "stage", kind="text"),
        Column("devices", "device", kind="text"),
        Column("layers", "layers"),
        Column("first", "begins with", kind="name", rank=1),
        Column("last", "ends with", kind="name", rank=2),
        Column(
            "stage_s", "micro-batch", "s", meaning="Seconds of the stage for each micro-batch, with exposed messages."
        ),
        Column("forward_s", "forward", "s", rank=1),
        Column("backward_s", "backward", "s", rank=1),
        Column("update_s", "update", "s", rank=3),
        Column("sent_bytes", "sent", "B", meaning="Results to the next stage, for each micro-batch."),
        *(Column(key, lock, SHARE, rank=2) for lock, key in _KEYS.items()),
        Column("bytes", "memory", "B"),
        Column("weight_bytes", "weights", "B", rank=2, meaning="Parameters in all versions, gradients, states."),
        Column("stash_bytes", "stash", "B", rank=1),
        Column("live", "under way", rank=1, meaning="Micro-batches whose inputs and activations it keeps."),
        Column("versions", "versions", rank=3),
        Column("staleness", "staleness"),
    )
    caption = "Layers of a stage need not follow each other: branches are cut apart" if _is_branched(one.chain) else ""
    return Table(f"Stages under {one.schedule.name}", columns, list(_stage_rows(one)), caption)


def _is_branched(chain: Chain) -> bool:
    return any(one.layers[-1] - one.layers[0] + 1 != len(one.layers) for one in chain.parts)


def _stage_rows(one: ScheduledPartition) -> Iterator[dict[str, Any]]:
    layers = one.chain.problem.graph.layers
    for number, (part, cost, names) in enumerate(
        zip(one.chain.parts, one.chain.costs, one.chain.names(), strict=True)
    ):  # fmt: skip
        own = [share for share in one.outcome.shares if share.worker.stage == number]
        yield {
            "stage": str(number),
            "devices": ", ".join(names),
            "layers": len(part.layers),
            "first": layers[part.layers[0]].name,
            "last": layers[part.layers[-1]].name,
            "stage_s": cost.stage_s,
            "forward_s": cost.forward_s,
            "backward_s": cost.backward_s,
            "update_s": cost.update_s,
            "sent_bytes": cost.message_bytes[0],
            "returned_bytes": cost.message_bytes[1],
            **{key: sum(share.waiting[lock] for share in own) / len(own) for lock, key in _KEYS.items()},
            "bytes": cost.bytes,
            "weight_bytes": cost.weight_bytes,
            "stash_bytes": cost.stash_bytes,
            "passing_bytes": cost.passing_bytes,
            "live": cost.live,
            "versions": cost.versions,
            "staleness": cost.staleness,
        }


def _cuts(found: PartitionResult) -> Table:
    columns = (
        Column("name", "cuts", kind="text"),
        Column("stages", "stages"),
        Column("slowest_stage_s", "slowest stage", "s", digits=4),
        Column("ratio", "over the best", digits=4),
        Column("fits", "fits", kind="text"),
    )
    return Table(f"Other cuts under {found.best.schedule.name}", columns, _cut_rows(found.best),
                 "Slowest stage of a micro-batch, with exposed messages")  # fmt: skip


def _cut_rows(one: ScheduledPartition) -> list[dict[str, Any]]:
    partition, slowest_s = one.partition, one.partition.chain.slowest_s
    chains = {"fastest slowest stage": partition.chain}
    chains |= {} if one.chain is partition.chain else {"chosen by replay": one.chain}
    chains |= {"greedy": partition.greedy, "equal layers": partition.equal_layers}
    rows: list[dict[str, Any]] = [
        {"name": "bound", "stages": None, "slowest_stage_s": partition.bound_s, "fits": "",
         "ratio": partition.bound_s / slowest_s if slowest_s else 1.0}
    ]  # fmt: skip
    for name, chain in chains.items():
        lacks = "yes" if chain.fits else f"no, {quantity(chain.missing_bytes, 'B')} are missing"
        ratio = chain.slowest_s / slowest_s if slowest_s else 1.0
        rows.append({"name": name, "stages": len(chain.parts), "slowest_stage_s": chain.slowest_s, "ratio": ratio,
                     "fits": lacks})  # fmt: skip
    return rows


def _charts(found: PartitionResult) -> tuple[Chart, ...]:
    steps = tuple(Bar(one.schedule.name, one.step_s) for one in found.ranked)
    memory = tuple(Bar(one.schedule.name, one.peak_bytes) for one in found.ranked)
    return (
        Bars("Seconds of a step", steps),
        Bars("Memory", memory, "B", "Of the device that holds most."),
    )


def _timeline(one: ScheduledPartition, shown_s: float) -> Iterator[TimelineSpan]:
    """Draw what workers run in so many seconds of the reported time; each schedule begins at 0."""
    begin_s = one.outcome.window_s[0]
    end_s = begin_s + shown_s
    names, critical = one.chain.names(), one.outcome.timeline.critical_keys
    for span in one.outcome.spans:
        start_s, stop_s = max(span.start_s, begin_s) - begin_s, min(span.end_s, end_s) - begin_s
        for worker in span.task.resources:
            if isinstance(worker, Worker) and stop_s > start_s:
                row = f"{worker} ({names[worker.stage][worker.replica]})"
                name, kind = str(span.task.key), span.task.label
                yield TimelineSpan(row, name, kind, start_s, stop_s, span.task.key in critical, one.schedule.name)


def _answer(found: PartitionResult) -> dict[str, Any]:
    question = found.question
    return {
        "devices": [one.name for one in question.devices],
        "micro_batch": question.micro_batch,
        "micro_batches": question.micro_batches,
        "overlap": question.overlap,
        "alone_s": found.alone_s,
        "alone_fits": question.alone.fits,
        "best": found.best.schedule.name,
        "schedules": [
            {
                **_row(found, one),
                "method": one.partition.method,
                "all_devices_s": _finite(one.partition.all_devices_s),
                "stage_rows": [
                    {**row, "layers": [one.chain.problem.graph.layers[place].name for place in part.layers]}
                    for row, part in zip(_stage_rows(one), one.chain.parts, strict=True)
                ],
                "tied": list(one.chain.split_tied()),
                "cuts": _cut_rows(one),
            }
            for one in found.ranked
        ],
        "refused": dict(found.refused),
        "warnings": list(found.warnings),
    }


def _devices(count: int) -> str:
    return f"{count} device{'s' * (count != 1)}"


def _finite(value: float | None) -> float | None:
    return None if value is None or value == float("inf") else value
