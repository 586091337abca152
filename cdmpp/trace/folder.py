"""A folder with the traces of all ranks of one job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.errors import DataError, some
from cdmpp.platform.content import content_of, parse_json
from cdmpp.steps.contention import MOST_SHARE
from cdmpp.steps.step_graph import StepGraph
from cdmpp.trace.kineto import read_kineto
from cdmpp.trace.median_step import median_step

STEPS_SUFFIX = ".steps.json"
"""End of the file next to each trace that ``cdmpp.trace.record`` made."""
PROBE = "probe.json"
"""File that ``cdmpp.trace.probe`` writes."""
HOW = "record each rank with `cdmpp.trace.record(FOLDER)`, or export torch.profiler's Chrome trace of each rank there"


@dataclass(frozen=True)
class Recording:
    """Figures that a recorder measured in addition to the trace of a rank."""

    steps_s: tuple[float, ...]
    """Length of each step of the run."""
    profiled: tuple[int, int]
    """First step that the profiler was on for, warming up included, and the first one after."""
    event_s: float
    """Seconds by which the profiler delays one event of the host."""

    @property
    def added_s(self) -> float:
        """Seconds by which steps with the profiler on were longer; 0 where too few were measured."""
        plain_s, profiled_s = self.unprofiled_s, _median(self.steps_s[self.profiled[0] + 1 : self.profiled[1]])
        return 0.0 if plain_s is None or profiled_s is None else max(profiled_s - plain_s, 0.0)

    @property
    def before_s(self) -> float | None:
        """Median step before the profiler was on; None without three."""
        return _median(self.steps_s[1 : self.profiled[0]])

    @property
    def after_s(self) -> float | None:
        """Median step after it, the first of them left out: it writes the trace."""
        return _median(self.steps_s[self.profiled[1] + 1 :])

    @property
    def unprofiled_s(self) -> float | None:
        """Median step with the profiler off, before and after; None without three."""
        return _median(self.steps_s[1 : self.profiled[0]] + self.steps_s[self.profiled[1] + 1 :])


def read_job(folder: Path | str) -> StepGraph:
    """The median step of the job whose traces, ``*.json`` or ``*.json.gz``, lie in ``folder``.

    Raises:
        DataError: no folder, no traces, or what ``median_step`` refuses.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"no folder {folder}: {HOW}")
    files = sorted(f for f in folder.iterdir() if f.name.endswith((".json", ".json.gz")))
    traces = [file for file in files if not file.name.endswith(STEPS_SUFFIX) and file.name != PROBE]
    if not traces:
        names = sorted(file.name for file in folder.iterdir())
        raise DataError(f"no trace in {folder}, it holds {some(names, ', ') if names else 'nothing'}: {HOW}")
    recordings = [read_recording(file) for file in files if file.name.endswith(STEPS_SUFFIX)]
    event_s = float(np.median([one.event_s for one in recordings])) if recordings else 0.0
    read = [read_kineto(file) for file in traces]
    graph = median_step(read, event_s)
    if recordings and not any(step.events for trace in read for step in trace.steps):
        graph = _launched_without_profiler(graph, float(np.median([one.added_s for one in recordings])))
    unprofiled = [one.unprofiled_s for one in recordings if one.unprofiled_s is not None]
    unprofiled_s = float(np.median(unprofiled)) if unprofiled else None
    probed, share = read_probe(folder / PROBE) if (folder / PROBE).exists() else ((), graph.processor_share)
    measured = replace(graph.measured, unprofiled_s=unprofiled_s, probed=probed)
    return replace(graph, measured=measured, processor_share=share)


def _launched_without_profiler(graph: StepGraph, added_s: float) -> StepGraph:
    """Take the profiler's delay off a GPU trace: it is in the gaps, where the GPU has nothing to run.

    What it adds to an event depends on the event, so whole steps are compared: the gaps lose it in proportion.
    """
    ranks = []
    for rank in graph.ranks:
        share = max(1 - added_s / rank.idle_s, 0.0) if rank.idle_s else 1.0
        ops = tuple(replace(op, delay_s=share * op.delay_s) for op in rank.ops)
        ranks.append(replace(rank, ops=ops, tail_s=share * rank.tail_s))
    return replace(graph, ranks=tuple(ranks))


def read_recordings(folder: Path | str) -> tuple[Recording, ...]:
    """The recordings next to the traces, in order of their names."""
    return tuple(read_recording(file) for file in sorted(Path(folder).glob(f"*{STEPS_SUFFIX}")))


def read_recording(file: Path) -> Recording:
    """``DataError`` where the file is none."""
    try:
        parsed: dict[str, Any] = parse_json(content_of(file))
        first, after = parsed["profiled"]
        return Recording(tuple(map(float, parsed["steps_s"])), (int(first), int(after)), float(parsed["event_s"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"cannot read {file}, which cdmpp.trace.record writes: {error!r}") from error


def read_probe(file: Path) -> tuple[tuple[tuple[str, int, float], ...], float]:
    """Kind, bytes, seconds; and the share of a processor that operators lose, 0 where that was not timed.

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
