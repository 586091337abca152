"""A folder with the traces of all ranks of one job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.errors import DataError, some
from cdmpp.platform.content import content_of, parse_json
from cdmpp.trace.beside import MOST
from cdmpp.trace.job import TracedJob
from cdmpp.trace.kineto import read_kineto
from cdmpp.trace.usual_step import usual_step

STEPS_SUFFIX = ".steps.json"
"""Beside each trace, where ``cdmpp.trace.record`` made it."""
PROBE = "probe.json"
"""Where ``cdmpp.trace.probe`` was asked."""
HOW = "record each rank with `cdmpp.trace.record(FOLDER)`, or export torch.profiler's Chrome trace of each rank there"


@dataclass(frozen=True)
class Recording:
    """What a recorder measured beside the trace of a rank."""

    steps_s: tuple[float, ...]
    """Length of each step of the run."""
    profiled: tuple[int, int]
    """First step that the profiler was on for, warming up included, and the first one after."""
    event_s: float
    """By which the profiler delays one event of the host."""

    @property
    def added_s(self) -> float:
        """By how much steps with the profiler on were longer; 0 where too few were measured."""
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
        """Median of both."""
        return _median(self.steps_s[1 : self.profiled[0]] + self.steps_s[self.profiled[1] + 1 :])


def read_job(folder: Path | str) -> TracedJob:
    """The usual step of the job whose traces, ``*.json`` or ``*.json.gz``, lie in ``folder``.

    Raises:
        DataError: no folder, no traces, or what ``usual_step`` refuses.
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
    job = usual_step(read, event_s)
    if recordings and not any(step.events for trace in read for step in trace.steps):
        job = _launched_without_profiler(job, float(np.median([one.added_s for one in recordings])))
    told = [one.unprofiled_s for one in recordings if one.unprofiled_s is not None]
    job = replace(job, unprofiled_s=float(np.median(told)) if told else None)
    if not (folder / PROBE).exists():
        return job
    probed, share = read_probe(folder / PROBE)
    return replace(job, probed=probed, processor_share=share)


def _launched_without_profiler(job: TracedJob, added_s: float) -> TracedJob:
    """Of a GPU: the profiler delays the host, so its time is in the gaps, where the GPU has nothing to run.

    What it adds to an event depends on the event, so it is told by whole steps: the gaps lose it in proportion.
    """
    ranks = []
    for rank in job.ranks:
        gaps_s = sum(op.gap_s for op in rank.ops) + rank.tail_s
        share = max(1 - added_s / gaps_s, 0.0) if gaps_s else 1.0
        ops = tuple(replace(op, gap_s=share * op.gap_s) for op in rank.ops)
        ranks.append(replace(rank, ops=ops, tail_s=share * rank.tail_s))
    return replace(job, ranks=tuple(ranks))


def read_recordings(folder: Path | str) -> tuple[Recording, ...]:
    """Those that lie beside the traces, in order of their names."""
    return tuple(read_recording(file) for file in sorted(Path(folder).glob(f"*{STEPS_SUFFIX}")))


def read_recording(file: Path) -> Recording:
    """``DataError`` where the file is none."""
    try:
        told: dict[str, Any] = parse_json(content_of(file))
        first, after = told["profiled"]
        return Recording(tuple(map(float, told["steps_s"])), (int(first), int(after)), float(told["event_s"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"cannot read {file}, which cdmpp.trace.record writes: {error!r}") from error


def read_probe(file: Path) -> tuple[tuple[tuple[str, int, float], ...], float]:
    """Kind, bytes, seconds; and the share of a processor that operators lose, 0 where that was not timed.

    ``DataError`` where the file is no such table.
    """
    try:
        told = parse_json(content_of(file))
        rows = sorted((str(row["kind"]), int(row["bytes"]), float(row["latency_s"])) for row in told["rows"])
        share = float(told.get("processor_share", 0.0))
        if not share >= 0:
            raise ValueError(f"processor_share is {share}")
        return tuple(rows), min(MOST, share)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"cannot read {file}, which cdmpp.trace.probe writes: {error!r}") from error


def _median(values: tuple[float, ...]) -> float | None:
    return float(np.median(values)) if len(values) >= 3 else None
