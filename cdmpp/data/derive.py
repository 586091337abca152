"""Has TVM analyse programs in worker processes, into chunk files: killed runs continue, slow programs end."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cdmpp.ast.table import AstTable, write_asts
from cdmpp.data.derive_worker import unpacked
from cdmpp.data.derived_table import write_codes, write_rows
from cdmpp.data.schema import Record
from cdmpp.devices import Device, sheets_of
from cdmpp.devices.cores import core_key
from cdmpp.errors import DataError, UnsupportedProgramError
from cdmpp.execute.executor import is_here, replies_of
from cdmpp.execute.work import Work
from cdmpp.machine_code.cpu.compile import LIMIT_S
from cdmpp.platform.cache import note_use, note_write
from cdmpp.platform.extension import extension
from cdmpp.platform.files import read_json, write_json
from cdmpp.platform.paths import cache_root
from cdmpp.platform.progress import shown
from cdmpp.platform.workers import Reply, keep_worker, take_worker
from cdmpp.programs.task import Task

log = logging.getLogger(__name__)
T = TypeVar("T")

COMMAND = ("-m", "cdmpp.data.derive_worker")
_WRITE_AFTER_S, _WRITE_AFTER = 10.0, 1024  # seconds and programs between two chunk files: what a kill can lose
_PER_WORKER = 8  # programs that are worth another process, which takes a second to start
_MANY = 64  # programs that take some seconds, so that a bar is shown
_DOING = {"asts": "lowering", "codes": "compiling", "gpu_codes": "compiling", "per_store": "featurising"}
_LIBRARIES = {"asts": "extract", "codes": "cpu_code", "gpu_codes": "gpu_code"}
"""Kind -> the ``platform.extension`` that reads it. It is of the installation: none of its faults is a program's."""
_CODE_KINDS = {'"llvm"': "codes", '"cuda"': "gpu_codes"}
_TOGETHER = 12  # GPU programs that are compiled together: NVIDIA's tools take most of a second to start


@dataclass(frozen=True)
class Source:
    """A source is a program as text: what a worker makes it of."""

    key: str  # names the result in chunk files: equal for equal programs only
    workload: str
    """TVMScript of the unscheduled module; or a JSON graph that TVM wrote in this process or a child of it."""
    schedule: str  # trace as JSON; empty for none
    target: str  # JSON
    graph: bool = False
    core: str = ""  # that the machine code is to run on: its name; of a GPU how many multiprocessors there are


def record_keys(record_ids: Iterable[str], task_ids: Sequence[str], tasks: Mapping[str, Task]) -> list[str]:
    """Name records' derived files. The workload counts: one that was mended is another program."""
    digests = {task_id: hashlib.sha256(tasks[task_id].workload.encode()).hexdigest()[:16] for task_id in set(task_ids)}
    return [f"{record_id}-{digests[task_id]}" for record_id, task_id in zip(record_ids, task_ids, strict=True)]


def core_of(sheet: Device) -> str:
    """Return the ``Source.core`` of programs for a device; empty where nothing is known."""
    return sheet.core or (str(int(sheet.spec["core_count"] or 0)) if sheet.kind == "gpu" else "")


def core_key_of(sheet: Device) -> str:
    """Return the part of a cache's name that says what code for a device runs on, as it is described now."""
    return core_key(sheet.core) if sheet.core else core_of(sheet)


def code_kind(target: str) -> str | None:
    """Return the kind of code vectors that programs of a ``Source.target`` have; None: none."""
    return next((kind for name, kind in _CODE_KINDS.items() if name in target), None)


def sources_of(records: Iterable[Record], tasks: Mapping[str, Task]) -> list[Source]:
    """Make a source of each record, keyed by ``record_keys``."""
    records = list(records)
    keys = record_keys([r.record_id for r in records], [r.task_id for r in records], tasks)
    cores_of = {name: core_of(sheet) for name, sheet in sheets_of(r.device for r in records).items()}
    return [
        Source(key, tasks[r.task_id].workload, r.schedule, r.target, core=cores_of[r.device])
        for key, r in zip(keys, records, strict=True)
    ]


def derived_folder(kind: str, version: str, *parts: str) -> Path:
    """Return the cache folder of ``kind``, by a hash of ``parts``: whatever they hold, it lies in the cache."""
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return cache_root() / kind / f"v{version}" / digest[:20]


def data_set_folder(kind: str, version: str, folder: Path, *parts: str) -> Path:
    """Return the ``derived_folder`` of what comes from the data set in ``folder``, and of ``parts``."""
    return derived_folder(kind, version, str(Path(folder).resolve()), *parts)


def read_chunks(folder: Path, read: Callable[[Path], T]) -> Iterator[T]:
    """Yield what ``read`` makes of every finished chunk file; damaged ones are deleted: they are derived again."""
    note_use(folder)
    for path in sorted(folder.glob("chunk-*.parquet")):
        try:
            yield read(path)
        except DataError:
            path.unlink(missing_ok=True)


def failures(folder: Path) -> dict[str, str]:
    """Read all chunks of a cache folder: key -> why nothing can be derived from that program."""
    reasons: dict[str, str] = {}
    for path in sorted(folder.glob("chunk-*.failed.json")):
        try:
            reasons.update(read_json(path))
        except (DataError, ValueError, TypeError) as error:  # damaged: tried again
            log.warning("%s", error)
    return reasons


def has_tvm() -> bool:
    """Return True where TVM is installed, without importing it."""
    try:
        return importlib.util.find_spec("tvm") is not None
    except ValueError:  # hidden on purpose
        return False


def derive(
    wanted: Mapping[str, tuple[Path, Sequence[Source]]],
    workers: int = 2,
    progress: bool = True,
    title: str = "deriving",
    limit_s: float = LIMIT_S,
    together: int = _TOGETHER,
) -> dict[str, dict[str, str]]:
    """Derive all that is ``wanted`` and did not fail for good before; ask for what no finished chunk holds.

    Args:
        wanted: kind (``asts``, ``codes``, ``gpu_codes`` or ``per_store``) -> folder of its chunk files, programs.
        limit_s: for one program.
        together: GPU programs that are compiled together.

    Returns:
        Kind -> key -> why nothing was derived. Where time ran out or the machine lacked something the next call tries
        again.

    Raises:
        DataError: no TVM, or files cannot be written.
        MissingToolError: the compiled extension that reads a kind was not built, or of other sources.
    """
    if "gpu_codes" in wanted and len(wanted) > 1:  # in batches, whose time limit is no limit for the others
        rest = {kind: what for kind, what in wanted.items() if kind != "gpu_codes"}
        own = {"gpu_codes": wanted["gpu_codes"]}
        parts = (derive(one, workers, progress, title, limit_s, together) for one in (rest, own))
        return {kind: reasons for part in parts for kind, reasons in part.items()}
    reasons = {kind: failures(folder) for kind, (folder, _) in wanted.items()}
    jobs = [(kind, s) for kind, (_, sources) in wanted.items() for s in sources if s.key not in reasons[kind]]
    if not jobs:
        return reasons
    _check_tools(jobs)
    jobs.sort(key=lambda job: (job[0], job[1].workload))  # neighbours share a parsed workload
    groups = list(_grouped(jobs, together))
    chunks = {kind: _Chunk(kind, folder) for kind, (folder, _) in wanted.items()}
    longest_s = limit_s * max(len(sources) for _, sources in groups)
    work = Work(COMMAND, longest_s, min(workers, -(-len(jobs) // _PER_WORKER)))
    requests = (_request(kind, sources) for kind, sources in groups)
    again: list[Source] = []
    try:
        with (
            closing(replies_of(work, requests, len(groups))) as replies,
            closing(_shown(replies, title, groups, progress)) as bar,
        ):
            for index, reply in bar:
                kind, sources = groups[index]
                if kind == "gpu_codes" and "programs" not in reply and len(sources) > 1:
                    again += sources  # one of them is too slow, or ends the process: which?
                    continue
                for source, one in zip(sources, reply.get("programs", [reply]), strict=True):
                    if "arrays" in one:
                        chunks[kind].rows[source.key] = unpacked(one["arrays"])
                        continue
                    reasons[kind][source.key], lasting = _fault(one, _DOING[kind], limit_s)
                    if lasting:
                        chunks[kind].failed[source.key] = reasons[kind][source.key]
                chunks[kind].write(some=True)
    finally:
        for chunk in chunks.values():
            chunk.write()
    if again:
        one_by_one = {"gpu_codes": (wanted["gpu_codes"][0], again)}
        reasons |= derive(one_by_one, workers, progress, title, limit_s, together=1)
    return reasons


def _check_tools(jobs: Sequence[tuple[str, Source]]) -> None:
    """Raise what ``derive`` raises where this installation derives none of a kind, whatever the program."""
    if not has_tvm():
        raise DataError(
            f"{len(jobs)} programs have no stored features and TVM is not installed to derive them: "
            "pip install 'cdmpp[tvm]', or use a data set that ships its asts/ folder"
        )
    for kind in dict.fromkeys(kind for kind, _ in jobs if kind in _LIBRARIES):
        extension(_LIBRARIES[kind])


def _grouped(jobs: Sequence[tuple[str, Source]], together: int) -> Iterator[tuple[str, list[Source]]]:
    """Programs that one request is for."""
    for kind in dict.fromkeys(kind for kind, _ in jobs):
        sources = [source for other, source in jobs if other == kind]
        size = together if kind == "gpu_codes" else 1
        groups = [sources[start : start + size] for start in range(0, len(sources), size)]
        if kind == "gpu_codes":  # hours, of thousands of programs: what is there when it is stopped is an even sample
            random.Random(0).shuffle(groups)
        yield from ((kind, group) for group in groups)


def _request(kind: str, sources: Sequence[Source]) -> dict[str, Any]:
    if kind == "gpu_codes":
        return {"op": kind, "programs": [asdict(source) for source in sources]}
    return {"op": kind, **asdict(sources[0])}


def _shown(replies: Generator[T], title: str, jobs: Sequence[object], progress: bool) -> Generator[T]:
    """``replies``, with a bar on stderr where they will take longer than a moment."""
    return replies if progress and len(jobs) < _MANY else shown(replies, title, len(jobs), progress)


def start_workers(n: int, codes: bool = False) -> None:
    """Begin to start ``n`` processes for the next call of ``derive``, and go on; ``codes``: to compile as well.

    Nothing is started where the work is done elsewhere.
    """
    if not is_here():
        return
    taken = [take_worker(COMMAND, {"op": "ready", "codes": codes}) for _ in range(n)]
    for worker in taken:
        worker.launch()
        keep_worker(worker)


def script_programs(path: Path, target: Mapping[str, object], limit_s: float) -> tuple[list[str], list[Source]]:
    """Read names and sources of the programs in a TVMScript file, for ``target``. Keys are numbers.

    ``UnsupportedProgramError``: the file cannot be read as programs.
    """
    request = {"op": "script", "path": str(path.resolve()), "target": dict(target)}
    worker = take_worker(COMMAND)
    reply = worker.request(request, limit_s)
    keep_worker(worker)
    if "cause" in reply:
        raise UnsupportedProgramError(f"{path} cannot be read: {_fault(reply, 'reading', limit_s)[0]}")
    if "refused" in reply:
        raise UnsupportedProgramError(reply["refused"].replace(request["path"], str(path)))
    programs, text = reply["programs"], reply["target"]
    return [name for name, _ in programs], [Source(str(i), g, "", text, True) for i, (_, g) in enumerate(programs)]


def _fault(reply: Reply, doing: str, limit_s: float) -> tuple[str, bool]:
    """The reason why there is no answer, and whether it will recur: time that ran out and a kill need not."""
    if "reason" in reply:
        return reply["reason"], reply["lasting"]
    if reply["cause"] == "timeout":
        return f"{doing} took more than {limit_s:g} s", False
    if reply["cause"] != "crash":
        return reply["message"], False
    if reply["status"] == -9:
        return f"{doing} was killed from outside, for memory perhaps", False
    return f"TVM crashed while {doing} this program", True


@dataclass
class _Chunk:
    """Results of one kind on their way to disk, by key."""

    kind: str
    folder: Path
    rows: dict[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    written_at: float = field(default_factory=time.monotonic)

    def write(self, some: bool = False) -> None:
        """Write what there is; with ``some`` only where enough has come together."""
        if some and len(self.rows) < _WRITE_AFTER and time.monotonic() - self.written_at <= _WRITE_AFTER_S:
            return
        rows, failed, self.rows, self.failed = self.rows, self.failed, {}, {}
        self.written_at = time.monotonic()
        digest = hashlib.sha256("\0".join([*rows, *failed]).encode()).hexdigest()[:16]
        try:
            if rows:
                _write_rows(self.kind, path := self.folder / f"chunk-{digest}.parquet", rows)
                note_write(path)
            if failed:
                write_json(path := self.folder / f"chunk-{digest}.failed.json", failed)
                note_write(path)
        except DataError as error:
            if not self.folder.is_relative_to(cache_root()):
                raise
            reason = str(error).partition(". ")[0]
            raise DataError(
                f"{reason}. What is derived is read from there: let CDMPP_CACHE name another folder"
            ) from error


def _write_rows(kind: str, path: Path, rows: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    if kind == "asts":
        write_asts(path, list(rows), AstTable.concat([AstTable(**arrays) for arrays in rows.values()]))
    elif kind in ("codes", "gpu_codes"):
        write_codes(path, {key: arrays["code"] for key, arrays in rows.items()})
    else:
        write_rows(path, {key: arrays["rows"] for key, arrays in rows.items()})
