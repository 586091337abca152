"""What TVM computes of programs, in worker processes and chunk files: killed runs continue, slow programs end.

Workers are plain child processes that speak JSON lines, so a caller's script needs no ``__main__`` guard, and a
program that crashes or stalls TVM costs itself only.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import queue
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cdmpp.data.derive_process import Worker, give_back, take_worker
from cdmpp.data.derive_progress import Progress
from cdmpp.data.files import read_json, write_json
from cdmpp.data.schema import Record
from cdmpp.errors import DataError
from cdmpp.paths import cache_root
from cdmpp.programs.task import Task

log = logging.getLogger(__name__)

CHUNK = 256
"""Programs a request at most."""
LIMIT_S = 60.0
"""For one program: lowering takes 30 ms, compiling 0.3 s as a rule."""
_PER_WORKER, _SMALLEST_CHUNK = 4, 8
_DOING = {"asts": "lowering", "codes": "compiling", "per_store": "featurising"}


@dataclass(frozen=True)
class Source:
    """A program as text: what a worker makes it of."""

    key: str
    """Names the result in chunk files: equal for equal programs only."""
    workload: str
    """TVMScript of the unscheduled module; or a JSON graph that TVM wrote in this process or a child of it."""
    schedule: str
    """Trace as JSON; empty for none."""
    target: str
    """JSON."""
    graph: bool = False


@dataclass(frozen=True)
class Wanted:
    """``kind`` of every source, into chunk files below ``folder``."""

    kind: str
    """``asts``, ``per_store`` or ``codes``, a key of ``derive_worker.HANDLERS``."""
    folder: Path
    sources: Sequence[Source]


def record_key(record_id: str, workload: str) -> str:
    """Of a record's derived files. The workload counts: one that was mended is another program."""
    return f"{record_id}-{hashlib.sha256(workload.encode()).hexdigest()[:16]}"


def record_keys(record_ids: Iterable[str], task_ids: Iterable[str], tasks: Mapping[str, Task]) -> list[str]:
    """``record_key`` of many records, hashing each task once."""
    ends: dict[str, str] = {}
    for task_id in (task_ids := list(task_ids)):
        if task_id not in ends:
            ends[task_id] = record_key("", tasks[task_id].workload)
    return [record_id + ends[task_id] for record_id, task_id in zip(record_ids, task_ids, strict=True)]


def sources_of(records: Iterable[Record], tasks: Mapping[str, Task]) -> list[Source]:
    """One a record, keyed by ``record_keys``."""
    records = list(records)
    keys = record_keys([r.record_id for r in records], [r.task_id for r in records], tasks)
    return [Source(key, tasks[r.task_id].workload, r.schedule, r.target) for key, r in zip(keys, records, strict=True)]


def derived_folder(kind: str, version: str, *parts: str) -> Path:
    """Cache folder of ``kind``, by a hash of ``parts``: whatever they hold, it lies in the cache."""
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return cache_root() / kind / f"v{version}" / digest[:20]


def data_set_folder(kind: str, version: str, folder: Path) -> Path:
    """``derived_folder`` of what comes from the data set in ``folder``."""
    return derived_folder(kind, version, str(Path(folder).resolve()))


def chunk_paths(folder: Path) -> list[Path]:
    """Finished chunk files of a cache folder."""
    return sorted(folder.glob("chunk-*.parquet"))


def failures(folder: Path) -> dict[str, str]:
    """Key -> why nothing can be derived from that program, over all chunks of a cache folder."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("chunk-*.failed.json")):
        try:
            found.update(read_json(path))
        except (DataError, ValueError, TypeError) as error:  # damaged: tried again
            log.warning("%s", error)
    return found


def has_tvm() -> bool:
    """Without importing it."""
    try:
        return importlib.util.find_spec("tvm") is not None
    except ValueError:  # hidden on purpose
        return False


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def derive(
    wanted: Sequence[Wanted],
    workers: int = 2,
    progress: bool = True,
    title: str = "",
    limit_s: float = LIMIT_S,
) -> dict[str, dict[str, str]]:
    """Derive all that is ``wanted``; a bar appears where it takes longer than two seconds.

    Ask for what no finished chunk holds. Programs of which nothing can be derived are listed by ``failures``.

    Returns:
        Kind -> key -> reason of those that failed for now: time ran out, or the machine lacked something. The next
        call tries them again.

    Raises:
        DataError: no TVM, or files cannot be written.
    """
    total = sum(len(one.sources) for one in wanted)
    if not total:
        return {one.kind: {} for one in wanted}
    if not has_tvm():
        raise DataError(
            f"{total} programs have no stored features and TVM is not installed to derive them: "
            "pip install 'cdmpp[tvm]', or use a data set that ships its asts/ folder"
        )
    jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
    size = min(CHUNK, max(_SMALLEST_CHUNK, -(-total // (_PER_WORKER * max(1, workers)))))
    count = 0
    for one in wanted:
        ordered = sorted(one.sources, key=lambda source: source.workload)  # neighbours share a parsed workload
        for start in range(0, len(ordered), size):
            jobs.put(_Job(one.kind, one.folder, ordered[start : start + size]))
            count += 1
    needed = -(-total // _SMALLEST_CHUNK)  # a further process costs a second to start
    run = _Run(jobs, limit_s, {one.kind: {} for one in wanted})
    threads = [threading.Thread(target=run.serve, daemon=True) for _ in range(max(1, min(workers, count, needed)))]
    for _ in threads:
        jobs.put(None)
    for thread in threads:
        thread.start()
    try:
        shown = Progress(title or f"deriving {wanted[0].kind}", total, progress)
        with shown:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.05)
                    shown.show(run.done)
    finally:
        run.stop.set()
    if run.errors:
        raise run.errors[0]
    return run.for_now


@dataclass(frozen=True)
class _Job:
    kind: str
    folder: Path
    sources: Sequence[Source]

    @property
    def path(self) -> Path:
        digest = hashlib.sha256("\0".join(source.key for source in self.sources).encode()).hexdigest()[:16]
        return self.folder / f"chunk-{digest}.parquet"

    def request(self) -> dict[str, Any]:
        """For a worker; workloads are sent once each."""
        index = {text: number for number, text in enumerate(dict.fromkeys(s.workload for s in self.sources))}
        programs = [(s.key, index[s.workload], s.schedule, s.target, s.graph) for s in self.sources]
        return {"kind": self.kind, "path": str(self.path), "workloads": list(index), "programs": programs}


@dataclass
class _Run:
    """One call of ``derive``, as its threads share it."""

    jobs: queue.SimpleQueue[_Job | None]
    limit_s: float
    for_now: dict[str, dict[str, str]]
    done: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    errors: list[BaseException] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self) -> None:
        """Feed one worker until the queue ends."""
        worker: Worker | None = None
        try:
            while not self.stop.is_set() and (job := self.jobs.get()) is not None:
                while job.sources and not self.stop.is_set():
                    worker = worker or take_worker()
                    stored, done = self._ask(worker, job)
                    if stored == len(job.sources) or self.stop.is_set():
                        break
                    reason, lasting = worker.fault(_DOING[job.kind], self.limit_s)
                    worker.close()
                    worker = None
                    job = self._without_culprit(job, stored, done, reason, lasting)
        except BaseException as error:  # shown to the caller by ``derive``
            self.errors.append(error)
            self.stop.set()
        if worker is not None and self.stop.is_set():
            worker.process.kill()
        if worker is not None:
            give_back(worker)

    def _ask(self, worker: Worker, job: _Job) -> tuple[int, int]:
        """(programs whose results are on disk, programs that were done) of a job; it may end early."""
        stored = done = 0
        for answer in worker.answers(job.request(), self.stop, self.limit_s):
            now = answer.get("stored", answer.get("done", done))
            with self.lock:
                self.done += now - done
            done = now
            if "stored" in answer:
                if answer["failed"]:
                    write_json(job.path.with_name(f"{job.path.stem}-{stored:03d}.failed.json"), answer["failed"])
                self.for_now[job.kind].update(answer["for_now"])
                stored = answer["stored"]
        return stored, done

    def _without_culprit(self, job: _Job, stored: int, done: int, reason: str, lasting: bool) -> _Job:
        """What is left of ``job`` after the worker died at program ``done``, which is noted as failed."""
        if done == len(job.sources):
            raise DataError(f"a worker died while it wrote {job.path}; run the same command again, it continues")
        culprit = job.sources[done]
        if lasting:
            write_json(replace(job, sources=[culprit]).path.with_suffix(".failed.json"), {culprit.key: reason})
        else:
            self.for_now[job.kind][culprit.key] = reason
        with self.lock:
            self.done += 1 - (done - stored)
        return replace(job, sources=[*job.sources[stored:done], *job.sources[done + 1 :]])
