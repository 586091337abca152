"""What TVM computes from stored schedules, in worker processes and chunk files: killed runs continue.

Workers are plain child processes that speak JSON lines, so a caller's script needs no ``__main__`` guard, and a
program that crashes TVM costs its own record only.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cdmpp.data.files import read_json, write_json
from cdmpp.data.schema import Record
from cdmpp.errors import DataError
from cdmpp.programs.task import Task

log = logging.getLogger(__name__)

CHUNK = 256
"""Programs a chunk file: about ten seconds of work, what a kill can lose."""
_TITLE = 36
"""Longest name of a progress bar; in a terminal of 80 columns its numbers would not fit beside a longer one."""


@dataclass(frozen=True)
class Job:
    kind: str
    """``asts``, ``per_store`` or ``codes``, a key of ``derive_worker.HANDLERS``."""
    path: Path
    records: Sequence[Record]

    def message(self, tasks: Mapping[str, Task]) -> str:
        """One JSON line for a worker; workloads are sent once each."""
        used = sorted({record.task_id for record in self.records})
        index = {task: number for number, task in enumerate(used)}
        programs = [(r.record_id, index[r.task_id], r.schedule, r.target) for r in self.records]
        workloads = [tasks[task].workload for task in used]
        return json.dumps({"kind": self.kind, "path": str(self.path), "workloads": workloads, "programs": programs})


def chunk_paths(folder: Path) -> list[Path]:
    """Finished chunk files of a cache folder."""
    return sorted(folder.glob("chunk-*.parquet"))


def failures(folder: Path) -> dict[str, str]:
    """Record id -> why nothing could be derived from it, over all chunks of a cache folder."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("chunk-*.failed.json")):
        found.update(read_json(path))
    return found


def derive(
    kind: str,
    folder: Path,
    records: Sequence[Record],
    tasks: Mapping[str, Task],
    workers: int = 2,
    progress: bool = True,
    title: str = "",
) -> None:
    """Derive ``kind`` of every record into chunk files below ``folder``.

    Call it with the records that no finished chunk holds. Records that fail are listed by ``failures``.
    """
    if not records:
        return
    if importlib.util.find_spec("tvm") is None:
        raise DataError(
            f"{len(records)} programs have no stored features and TVM is not installed to derive them: "
            "pip install 'cdmpp[tvm]', or use a data set that ships its asts/ folder"
        )
    ordered = sorted(records, key=lambda record: record.task_id)  # neighbours share a parsed workload
    jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
    for start in range(0, len(ordered), CHUNK):
        jobs.put(_job(kind, folder, ordered[start : start + CHUNK]))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    errors: list[BaseException] = []
    with ExitStack() as stack:
        console = Console(stderr=True)
        bar = stack.enter_context(Progress(*columns, TimeRemainingColumn(), console=console, disable=not progress))
        name = title or f"deriving {kind}"
        line = bar.add_task(name if len(name) <= _TITLE else f"{name[: _TITLE - 1]}…", total=len(ordered))
        stop = threading.Event()
        count = max(1, min(workers, -(-len(ordered) // CHUNK)))
        for _ in range(count):
            jobs.put(None)
        threads = [
            threading.Thread(
                target=_serve, args=(jobs, tasks, lambda n: bar.advance(line, n), stop, errors), daemon=True
            )
            for _ in range(count)
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        finally:
            stop.set()
    if errors:
        raise errors[0]


def _job(kind: str, folder: Path, records: Sequence[Record]) -> Job:
    digest = hashlib.sha256("".join(record.record_id for record in records).encode()).hexdigest()[:16]
    return Job(kind, folder / f"chunk-{digest}.parquet", records)


def _serve(
    jobs: queue.SimpleQueue[Job | None],
    tasks: Mapping[str, Task],
    advance: Callable[[int], None],
    stop: threading.Event,
    errors: list[BaseException],
) -> None:
    """Feed one worker until the queue ends."""
    worker: _Worker | None = None
    try:
        while not stop.is_set() and (job := jobs.get()) is not None:
            for part in _attempts(job):
                worker = worker or _Worker(stop)
                answer = worker.ask(part.message(tasks))
                if stop.is_set():
                    return
                if answer is None:  # the process died
                    worker.close()
                    worker = None
                    if len(part.records) == 1:
                        _note_failure(part, "TVM crashed on this program")
                    else:
                        continue  # _attempts goes on one by one
                elif "error" in answer:
                    raise DataError(answer["error"])
                elif answer["failed"]:
                    write_json(part.path.with_suffix(".failed.json"), answer["failed"])
                advance(len(part.records))
                if len(part.records) == len(job.records):
                    break
    except BaseException as error:  # shown to the caller by ``derive``
        errors.append(error)
        stop.set()
    finally:
        if worker is not None:
            worker.close()


def _attempts(job: Job) -> Iterator[Job]:
    """The whole job, then, for a caller that did not leave after it, its records one by one."""
    yield job
    if len(job.records) > 1:
        for record in job.records:
            yield _job(job.kind, job.path.parent, [record])


def _note_failure(job: Job, reason: str) -> None:
    write_json(job.path.with_suffix(".failed.json"), {job.records[0].record_id: reason})


class _Worker:
    """A child process that answers one JSON line per JSON line."""

    def __init__(self, stop: threading.Event) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}
        # The child must import the same cdmpp as we do, installed or not.
        root = str(Path(__file__).resolve().parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cdmpp.data.derive_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            encoding="utf-8",
        )
        self.stop = stop
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while self.process.poll() is None:
            if self.stop.wait(0.5):
                self.process.kill()

    def ask(self, message: str) -> dict[str, Any] | None:
        """The answer; None where the process died."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(message + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except (BrokenPipeError, OSError):
            return None
        return json.loads(line) if line.strip() else None

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        for stream in (self.process.stdin, self.process.stdout):
            try:
                stream.close()
            except OSError:
                pass
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
