"""A folder with the traces of all ranks of one job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.errors import DataError, some
from cdmpp.platform.content import content_of, parse_json
from cdmpp.steps.contention import MOST_SHARE
from cdmpp.steps.exchange import peers_of
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import StepGraph
from cdmpp.trace.kineto import rank_trace
from cdmpp.trace.matching import common_steps, median_length, order_doubts, whole_steps
from cdmpp.trace.median_step import agreement, step_of
from cdmpp.trace.process_groups import why_untold
from cdmpp.trace.rank_trace import Exchange, RankTrace, StepTrace
from cdmpp.trace.scanned import scan
from cdmpp.units import percent

STEPS_SUFFIX = ".steps.json"
"""End of the file next to each trace that ``cdmpp.trace.record`` made."""
MOST_OFF = 0.03
"""Share of the measured step by which a replay may differ without a warning."""
PROBE = "probe.json"
"""File that ``cdmpp.trace.probe`` writes."""
HOW = "record each rank with `cdmpp.trace.record(FOLDER)`, or export torch.profiler's Chrome trace of each rank there"


@dataclass(frozen=True)
class Recording:
    """A recorder measured these figures in addition to the trace of a rank."""

    steps_s: tuple[float, ...]
    """Length of each step of the run."""
    profiled: tuple[int, int]
    """First step that the profiler was on for, warming up included, and the first one after."""
    event_s: float
    """Seconds by which the profiler delays one event of the host."""

    @property
    def added_s(self) -> float:
        """Steps with the profiler on were so much longer; 0 where too few were measured."""
        plain_s, profiled_s = self.unprofiled_s, _median(self.steps_s[self.profiled[0] + 1 : self.profiled[1]])
        return 0.0 if plain_s is None or profiled_s is None else max(profiled_s - plain_s, 0.0)

    @property
    def before_s(self) -> float | None:
        """Return the median step before the profiler was on; None without three."""
        return _median(self.steps_s[1 : self.profiled[0]])

    @property
    def after_s(self) -> float | None:
        """Return the median step after it, the first of them left out: it writes the trace."""
        return _median(self.steps_s[self.profiled[1] + 1 :])

    @property
    def unprofiled_s(self) -> float | None:
        """Return the median step with the profiler off, before and after; None without three."""
        return _median(self.steps_s[1 : self.profiled[0]] + self.steps_s[self.profiled[1] + 1 :])


@dataclass(frozen=True)
class TracedJob:
    """A job is the traces of a folder and the step that they show."""

    graph: StepGraph
    traces: tuple[RankTrace, ...]
    """One for each rank of the graph, numbered as there."""
    numbers: tuple[int, ...]
    """For each rank of the graph its number in the job."""
    steps: tuple[Mapping[int, StepTrace], ...]
    """Steps that are whole on all ranks, rank of the graph -> trace."""
    warnings: tuple[str, ...]


def read_job(folder: Path | str, mark: str | None = None) -> StepGraph:
    """Read the median step of the job whose traces, ``*.json`` or ``*.json.gz``, lie in ``folder``.

    Raises:
        DataError: no folder, no traces, or what ``median_step`` refuses.
    """
    return traced_job(folder, read_traces(folder, mark)).graph


def read_traces(folder: Path | str, mark: str | None = None, progress: bool = False) -> tuple[RankTrace, ...]:
    """Read the traces in ``folder`` by rank, also those without a step that can be answered from.

    Args:
        folder: with one file a rank.
        mark: a regular expression of what begins a step, as ``step_windows`` takes it.
        progress: show a bar for each file.

    Raises:
        DataError: no folder, no traces, a file that is none, or two of the same rank.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"no folder {folder}: {HOW}")
    files = sorted(f for f in folder.iterdir() if f.name.endswith((".json", ".json.gz")))
    files = [file for file in files if not file.name.endswith(STEPS_SUFFIX) and file.name != PROBE]
    if not files:
        names = sorted(file.name for file in folder.iterdir())
        raise DataError(f"no trace in {folder}, it holds {some(names, ', ') if names else 'nothing'}: {HOW}")
    found, base_us = list[RankTrace](), None
    for file in files:
        scanned = scan(file, progress, base_us)
        base_us = scanned.base_us
        found.append(rank_trace(scanned, mark))
    found.sort(key=lambda trace: trace.rank)
    for one, other in zip(found, found[1:], strict=False):
        if one.rank == other.rank:
            unsaid = [trace.source for trace in (one, other) if trace.is_alone]
            raise DataError(
                f"two traces are of rank {one.rank}: {one.source} and {other.source}; keep the files of one run"
                + f" ({' and '.join(unsaid)}: no distributedInfo with rank and world_size)" * bool(unsaid)
            )
    sizes = sorted({trace.world_size for trace in found if not trace.is_alone})
    if len(sizes) > 1:
        raise DataError(
            f"the traces in {folder} are of jobs with {', '.join(map(str, sizes))} ranks: keep those of one"
        )
    return tuple(found)


def traced_job(folder: Path | str, traces: Sequence[RankTrace]) -> TracedJob:
    """Make the median step of all ranks, with what the folder says of the time that recording took.

    Raises:
        DataError: a rank without a whole step, or what ``median_step`` refuses.
    """
    if refusal := next((trace.refusal for trace in traces if trace.refusal), ""):
        raise DataError(refusal)
    if untold := why_untold(traces):
        raise DataError(untold)
    folder = Path(folder)
    numbers = tuple(trace.rank for trace in traces)
    warnings = [*_missing(traces), *dict.fromkeys(text for trace in traces for text in trace.inventory.warnings)]
    traces = [_renumbered(trace, numbers) for trace in traces]
    recordings = read_recordings(folder)
    event_s = float(np.median([one.event_s for one in recordings])) if recordings else 0.0
    common = common_steps(traces)
    graph, differ = step_of(common.steps, traces, event_s, common.usual), [*common.warnings]
    if off := _median_off(graph, common.steps):
        common = median_length(common.steps)
        graph = step_of(common.steps, traces, event_s, common.usual)
        differ += [f"{off}; {common.warnings[0]}"]
    if recordings and not any(step.events for trace in traces for step in trace.steps):
        graph = _launched_without_profiler(graph, float(np.median([one.added_s for one in recordings])))
    unprofiled = [one.unprofiled_s for one in recordings if one.unprofiled_s is not None]
    unprofiled_s = float(np.median(unprofiled)) if unprofiled else None
    probed, share = read_probe(folder / PROBE) if (folder / PROBE).exists() else ((), graph.processor_share)
    measured = replace(graph.measured, unprofiled_s=unprofiled_s, probed=probed)
    graph = replace(graph, measured=measured, processor_share=share)
    idle = [str(number) for number, rank in zip(numbers, graph.ranks, strict=True) if not rank.ops]
    if idle:
        differ.append(f"no operator of rank {some(idle, ', ')} is in its steps: they are one gap")
    differ += order_doubts(common.steps)
    if doubt := agreement(common.steps, traces).doubt:
        differ.append(doubt)
    return TracedJob(graph, tuple(traces), numbers, tuple(whole_steps(traces)), (*warnings, *differ))


def _median_off(graph: StepGraph, steps: Sequence[Mapping[int, StepTrace]]) -> str:
    """Say that the medians of several steps of devices do not make a step; empty where they do."""
    if len(steps) < 2 or any(one.host_s is None for one in steps[0].values()):
        return ""
    measured_s = graph.measured.step_s
    off = replay(graph).step_s / measured_s - 1 if measured_s else 0.0
    return f"medians of the steps' work replay {percent(off, signed=True)} off" if abs(off) > MOST_OFF else ""


def _missing(traces: Sequence[RankTrace]) -> list[str]:
    """A warning where ranks of the job have no trace here: nothing is made of the number that a file claims."""
    world = max(trace.world_size for trace in traces)
    if len(traces) == world:
        return []
    gaps, following = list[str](), 0
    for number in [*(trace.rank for trace in traces), world]:
        if number > following:
            gaps.append(str(following) if number == following + 1 else f"{following}-{number - 1}")
        following = number + 1
    return [
        f"traces of rank {some(gaps, ', ')} of {world:,} are missing: what those ranks do, and how long the others "
        "wait for them, cannot be told; such waiting counts as time of an exchange"
    ]


def _renumbered(trace: RankTrace, numbers: Sequence[int]) -> RankTrace:
    """The trace with its place among those that are there in place of its rank; messages name places too."""
    if tuple(numbers) == tuple(range(len(numbers))) and trace.world_size == len(numbers):
        return trace
    places = {number: place for place, number in enumerate(numbers)}

    def moved(one: Exchange) -> Exchange:
        peers = peers_of(one.kind, one.group)
        if peers is None:
            return one
        here = [places[rank] for rank in peers if rank in places]
        return replace(
            one, group=f"{here[0]}->{here[1]}" if len(here) == 2 else f"{one.group} of the job".replace("->", " to ")
        )

    steps = tuple(replace(step, exchanges=tuple(map(moved, step.exchanges))) for step in trace.steps)
    return replace(trace, rank=places[trace.rank], world_size=len(numbers), steps=steps, is_partial=True)


def _launched_without_profiler(graph: StepGraph, added_s: float) -> StepGraph:
    """Take the profiler's delay off a GPU trace: it is in the gaps, where the GPU has nothing to run.

    What it adds to an event depends on the event, so whole steps are compared: the gaps lose it in proportion.
    """
    base, ranks = replay(graph), []
    for rank in graph.ranks:
        gaps_s = base.rank_step_s(rank.rank) - base.busy_s[rank.rank] - base.waits_s[rank.rank]
        share = max(1 - added_s / gaps_s, 0.0) if gaps_s > 0 else 1.0
        ops = tuple(replace(op, delay_s=share * op.delay_s) for op in rank.ops)
        ranks.append(replace(rank, ops=ops, tail_s=share * rank.tail_s))
    return replace(graph, ranks=tuple(ranks))


def read_recordings(folder: Path | str) -> tuple[Recording, ...]:
    """Read the recordings next to the traces, in order of their names."""
    return tuple(read_recording(file) for file in sorted(Path(folder).glob(f"*{STEPS_SUFFIX}")))


def read_recording(file: Path) -> Recording:
    """Read a recording; ``DataError`` where the file is none."""
    try:
        parsed: dict[str, Any] = parse_json(content_of(file))
        first, after = parsed["profiled"]
        return Recording(tuple(map(float, parsed["steps_s"])), (int(first), int(after)), float(parsed["event_s"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"cannot read {file}, which cdmpp.trace.record writes: {error!r}") from error


def read_probe(file: Path) -> tuple[tuple[tuple[str, int, float], ...], float]:
    """Read kind, bytes, seconds; and the share of a processor that operators lose, 0 where that was not timed.

    ``DataError`` where the file is no such table.
    """
    try:
        parsed = parse_json(content_of(file))
        rows = sorted((str(row["kind"]), int(row["bytes"]), float(row["latency_s"])) for row in parsed["rows"])
        share = float(parsed.get("processor_share", 0.0))
        if not share >= 0:
            raise ValueError(f"processor_share is {share}")
        return tuple(rows), min(MOST_SHARE, share)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"cannot read {file}, which cdmpp.trace.probe writes: {error!r}") from error


def _median(values: tuple[float, ...]) -> float | None:
    return float(np.median(values)) if len(values) >= 3 else None
