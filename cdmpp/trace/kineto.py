"""Reader of the traces that ``torch.profiler`` exports (Kineto), of hosts and of any accelerator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.collectives.collective import MOST_RANKS
from cdmpp.errors import DataError, some
from cdmpp.platform.limits import shown
from cdmpp.trace.device_steps import busy_us, device_steps, overlaps
from cdmpp.trace.device_work import DeviceWork, Work, device_work, spans
from cdmpp.trace.event import is_copy, kind_of_category, whole
from cdmpp.trace.exchange_events import Records, is_record, summary
from cdmpp.trace.host_ops import host_steps
from cdmpp.trace.inventory import Breakdown, CategoryCount, CollectiveCount, Inventory, StepLength, StreamUse
from cdmpp.trace.process_groups import subgroups
from cdmpp.trace.rank_trace import RankTrace, StepTrace
from cdmpp.trace.scanned import Scanned, scan, without_collection
from cdmpp.trace.step_window import StepWindow, places, step_windows

_NAMED = 3
"""Broken events that a message names."""


def read_kineto(path: Path, mark: str | None = None) -> RankTrace:
    """Read one rank's trace, JSON or gzipped JSON; the rank is what the file says, not its name.

    Raises:
        DataError: no such trace, or no step in it that can be answered from.
    """
    found = rank_trace(scan(path, base_us=0.0), mark)
    if found.refusal:
        raise DataError(found.refusal)
    return found


def rank_trace(scanned: Scanned, mark: str | None = None) -> RankTrace:
    """Return what one rank did, and what was read of it. Its events are used up: they take the most memory.

    Args:
        scanned: its events.
        mark: a regular expression of what begins a step, as ``step_windows`` takes it.

    Raises:
        DataError: a rank that is no number, or beyond its world; a mark that no event has.
    """
    with without_collection():
        return _rank_trace(scanned, mark)


def _rank_trace(scanned: Scanned, mark: str | None) -> RankTrace:
    rank, world, backend, warnings = _place(scanned)
    windows, said, refusal = list[StepWindow](), "", ""
    try:
        windows, said = step_windows(scanned, mark)
    except DataError as error:
        if mark is not None:
            raise
        refusal = str(error)
    work = device_work(scanned, windows)
    streams = tuple(_use(name, works) for name, works in work.streams.items())
    warnings += _doubts(scanned, windows, work, streams, said)
    groups = subgroups(scanned, world)
    ranks = 0 if groups else world or rank + 1  # of an exchange that does not say its group
    records = Records(scanned.host, ranks)
    inventory = _inventory(scanned, windows, work, streams, said, rank, world or rank + 1, warnings, records)
    steps, workers = tuple[StepTrace, ...](), 1
    if scanned.device:
        workers = max(len({one.stream for works in work.streams.values() for one in works if one.is_collective}), 1)
        work.streams.clear()
        steps = device_steps(scanned, windows, work, records)
        if not steps:
            reasons = [f"step {one.number}: {why}" for one, why in zip(windows, work.lost, strict=True)]
            refusal = f"{scanned.path}: no step is whole: {some(reasons, '; ', _NAMED)}"
    elif not (refusal := refusal or _host_of_a_device(scanned)):
        steps, workers = host_steps(scanned.host, windows, rank, ranks)
        exchanges = [one for step in steps for one in step.exchanges]
        doubts = (*inventory.warnings, *records.doubts(exchanges))
        inventory = replace(inventory, collectives=_collectives(exchanges), warnings=doubts)
    return RankTrace(
        rank,
        world or rank + 1,
        backend,
        steps,
        str(scanned.path),
        workers,
        inventory,
        refusal,
        subgroups=groups,
        is_alone=world is None,
    )


def _place(scanned: Scanned) -> tuple[int, int | None, str, list[str]]:
    """Rank, number of ranks where the file says it, back end and doubts."""
    info = scanned.keys.get("distributedInfo")
    if info is None:
        return 0, None, "", []
    if not isinstance(info, dict):
        raise DataError(
            f"{scanned.path}: distributedInfo is {shown(info)}: expected an object with rank and world_size"
        )
    if "rank" not in info:
        backend = str(info.get("backend", ""))
        doubts = [f"{scanned.path.name} names no rank: it is taken as rank 0 of 1"] if backend else []
        return 0, None, backend, doubts
    try:
        rank, world = whole(info["rank"]), whole(info["world_size"]) if "world_size" in info else None
    except ValueError:
        raise DataError(
            f"{scanned.path}: distributedInfo {str(info)[:200]} has no rank that is a number, or a world_size that is "
            "none: expected whole numbers"
        ) from None
    if not 0 <= rank < (MOST_RANKS if world is None else world) <= MOST_RANKS:
        raise DataError(
            f"{scanned.path}: distributedInfo says rank {rank} of a world of {world}: expected a rank below the "
            f"world's size, which is at most {MOST_RANKS:,}"
        )
    return rank, world, str(info.get("backend", "")), []


def _host_of_a_device(scanned: Scanned) -> str:
    """Why a trace of the host tells nothing of a step: its work ran on a device that was not traced."""
    launches = [one for one in scanned.launches if "launch" in one.name.lower()]
    if launches:
        return (
            f"{scanned.path} has {len(launches):,} launches and no event of a device: its kernels were not recorded. "
            "Profile the device's activity too, and let it finish before the profiler stops"
        )
    if records := [one for one in scanned.host if is_record(one)]:
        return (
            f"{scanned.path} is the host's part of a job on devices: it hands {len(records):,} collectives to "
            f"{records[0].name.partition(':')[0]} and has no event of a device. Profile the device's activity too"
        )
    if not any(one.category == "cpu_op" for one in scanned.host):
        return f"{scanned.path} has no operators and no work of a device: nothing says what its steps do"
    return ""


def _use(stream: str, works: Sequence[Work]) -> StreamUse:
    begins, ends = spans(works)
    return StreamUse(stream, len(works), 1e-6 * busy_us(begins, ends), overlaps(begins, ends))


def _doubts(
    scanned: Scanned, windows: Sequence[StepWindow], work: DeviceWork, streams: Sequence[StreamUse], said: str
) -> list[str]:
    found = []
    if windows and not said:
        names = Counter(one.name for one in scanned.host if one.category == "user_annotation")
        often = [f"{name[:40]!r} ({count:,} times)" for name, count in names.most_common(_NAMED) if count > 1]
        found.append(
            "nothing marks the steps, so the whole trace is one: give torch.profiler a schedule and call its step(), "
            f"or name what begins a step with --step-mark REGEX{', such as ' * bool(often)}{', '.join(often)}"
        )
    elif said.startswith("cadence"):
        found.append(
            f"nothing marks the steps: they are cut where all kernels repeat ({said}); --step-mark REGEX names what "
            "begins a step, if that is another event"
        )
    if scanned.broken:
        reasons = Counter(one.reason for one in scanned.broken)
        found.append(
            f"{len(scanned.broken):,} broken events are lost: "
            f"{some([one for one, _ in reasons.most_common()], '; ', _NAMED)}"
        )
    if scanned.texts:
        found.append(f"{scanned.texts:,} events have numbers written as text; they are read as numbers")
    if scanned.device:
        left = [f"{w.number} ({why})" for w, why in zip(windows, work.lost, strict=True) if why]
        if left:
            found.append(f"{len(left)} of {len(windows)} steps are left out: step {some(left, '; ', _NAMED)}")
        if work.left_over:
            found.append(
                f"{len(work.left_over):,} of {len(scanned.device):,} device events are of no step: they were launched "
                "before the first, after the last or between two"
            )
        if work.unlaunched:
            found.append(
                f"{work.unlaunched:,} device events have no launch in the trace: the order of their stream says "
                "their step"
            )
        if each := [f"stream {one.stream}: {one.overlaps:,}" for one in streams if one.overlaps]:
            found.append(f"events of one stream overlap, they are kept as they are ({some(each, ', ', _NAMED)})")
    return found


def _inventory(
    scanned: Scanned, windows: Sequence[StepWindow], work: DeviceWork, streams: Sequence[StreamUse], said: str,
    rank: int, world: int, warnings: Sequence[str], records: Records,
) -> Inventory:  # fmt: skip
    kept: Counter = Counter()
    lost = Counter(one.category for one in scanned.broken)
    for works, why in zip(work.steps, work.lost, strict=True):
        (lost if why else kept).update(one.event.category for one in works)
    whole = [window for window, why in zip(windows, work.lost, strict=True) if not why or not scanned.device]
    for events in (scanned.launches, scanned.syncs, scanned.host):
        inside = places(np.array([event.ts for event in events]), whole) >= 0
        kept.update(event.category for event in compress(events, inside.tolist()))
    categories = tuple(
        CategoryCount(name, count, kept[name], count - kept[name] - lost[name], lost[name])
        for name, count in scanned.counts.most_common()
    )
    names = {event.category for event in scanned.device}
    names |= {one.category for one in scanned.broken if kind_of_category(one.category, False) == "device"}
    device = [one for one in categories if one.category in names]
    total = CategoryCount(
        "device", *(sum(getattr(c, f) for c in device) for f in ("events", "kept", "left_over", "lost"))
    )
    said_of = [
        records.of(one.event, one.launch)
        for works, why in zip(work.steps, work.lost, strict=True)
        if not why
        for one in works
        if one.is_collective
    ]
    return Inventory(
        str(scanned.path), rank, world, scanned.events, said, categories, total,
        tuple(sorted(streams, key=lambda one: -one.events)),
        tuple(_length(*row) for row in zip(windows, work.steps, work.lost, strict=True)) if scanned.device else
        tuple(StepLength(window.number, 1e-6 * window.length, 0.0, 0) for window in windows),
        _collectives(said_of),
        _breakdown(list(chain.from_iterable(work.streams.values()))), (*warnings, *records.doubts(said_of)),
    )  # fmt: skip


def _collectives(found: Sequence[Any]) -> tuple[CollectiveCount, ...]:
    return tuple(CollectiveCount(kind, *numbers) for kind, numbers in sorted(summary(found).items()))


def _length(window: StepWindow, works: Sequence[Work], lost: str) -> StepLength:
    begins, ends = spans(works)
    device_us = float(ends.max() - begins.min()) if works else 0.0
    return StepLength(window.number, 1e-6 * window.length, 1e-6 * device_us, len(works), lost)


def _breakdown(works: Sequence[Work]) -> Breakdown:
    if not works:
        return Breakdown(0.0, 0.0, 0.0)
    begins, ends = spans(works)
    moves = np.array([one.is_collective or is_copy(one.event.category, one.event.name) for one in works])
    order = np.argsort(begins, kind="stable")
    begins, ends, computing = begins[order], ends[order], ~moves[order]
    total, busy, computes = (
        float(ends.max() - begins[0]),
        busy_us(begins, ends),
        busy_us(begins[computing], ends[computing]),
    )
    return Breakdown(1e-6 * computes, 1e-6 * (busy - computes), 1e-6 * (total - busy))
