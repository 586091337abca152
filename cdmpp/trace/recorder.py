"""Recorder: a few steps of a training job, profiled, and the length of all its steps. Needs torch."""

from __future__ import annotations

import gzip
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from cdmpp.errors import CdmppError
from cdmpp.platform.files import write_atomic, write_text
from cdmpp.trace.folder import STEPS_SUFFIX


class Recorder:
    """``record`` gives this object: call ``step`` at the end of each training step."""

    def __init__(self, profiler: profile) -> None:
        self._profiler, self._last_s = profiler, time.perf_counter()
        self.steps_s: list[float] = []
        """Seconds of each step so far."""

    def step(self) -> None:
        """Mark the end of a step."""
        now_s = time.perf_counter()
        self.steps_s.append(now_s - self._last_s)
        self._profiler.step()
        self._last_s = now_s


@contextmanager
def record(folder: Path | str, wait: int = 10, steps: int = 5) -> Iterator[Recorder]:
    """Record this rank into ``folder``; every rank calls it, after ``torch.distributed.init_process_group``.

    Step ``wait`` warms the profiler up, the ``steps`` after it are traced, all others run without it. The trace is
    written when they are over, ``rankN.steps.json`` at the end.

    Raises:
        CdmppError: too few steps, or a folder that holds a trace of this rank.
    """
    if wait < 1 or steps < 1:
        raise CdmppError(f"wait {wait}, steps {steps}: expected at least one of each")
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    trace = folder / f"rank{rank}.json.gz"
    if trace.exists():
        raise CdmppError(f"{trace} is there already: record into a new folder")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    plan = schedule(wait=wait, warmup=1, active=steps, repeat=1)

    def write(profiler: profile) -> None:
        plain = trace.with_name(f".rank{rank}.part")
        profiler.export_chrome_trace(str(plain))
        write_atomic(trace, lambda temporary: _compress(plain, temporary))
        plain.unlink()

    with profile(activities=activities, schedule=plan, record_shapes=True, on_trace_ready=write) as profiler:
        recorder = Recorder(profiler)
        yield recorder
    found = {"steps_s": recorder.steps_s, "profiled": [wait, wait + 1 + steps], "event_s": event_cost_s()}
    write_text(folder / f"rank{rank}{STEPS_SUFFIX}", json.dumps(found))


def event_cost_s(calls: int = 200, tries: int = 30) -> float:
    """Time by how much the profiler delays an event of the host, in seconds: a small operator with and without.

    What counts is the time that this thread has a processor, the least of ``tries``: other work on the machine only
    adds to it.
    """
    small = torch.zeros(4)

    def run() -> float:
        begin_s = time.thread_time()
        for _ in range(calls):
            small.add_(1.0)
        return time.thread_time() - begin_s

    plain_s, profiled_s, events = list[float](), list[float](), 1
    for _ in range(tries):
        plain_s.append(run())
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            profiled_s.append(run())
        events = max(len(profiler.profiler.kineto_results.events()), 1)
    return max(min(profiled_s) - min(plain_s), 0.0) / events


def _compress(plain: Path, compressed: Path) -> None:
    with plain.open("rb") as source, gzip.open(compressed, "wb", compresslevel=1) as target:
        shutil.copyfileobj(source, target)
