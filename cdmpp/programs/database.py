"""MetaSchedule tuning databases on disk, read line by line so that a broken line is known by its number.

TVM's own reader sorts records by latency, drops failed ones and stops at the first bad line; this one keeps
file order and reports. Files may be gzipped.
"""

from __future__ import annotations

import base64
import functools
import json
import math
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tvm

from cdmpp.errors import CdmppError, DataError
from cdmpp.platform.content import lines_of, parse_json
from cdmpp.programs.gate import load_graph
from cdmpp.programs.legacy import convert_trace, legacy_to_script
from cdmpp.programs.script import parse_text
from cdmpp.programs.writer import check_writer, is_legacy_graph

RECORD_FILE = "database_tuning_record.json"
WORKLOAD_FILE = "database_workload.json"
FAILED_SECONDS = 1e9
"""MetaSchedule writes 1e10 s for a program that did not build or run."""


@dataclass(frozen=True)
class TuningLine:
    """This is one record of a tuning database."""

    number: int
    """Line number in the record file, from 1."""
    workload: int
    """Index into ``read_workloads``."""
    schedule: str
    """Trace as JSON ``[instructions, decisions]`` without blanks, in the form of TVM 0.27."""
    seconds: tuple[float, ...]
    """Repeats as measured, seconds; empty for a schedule that waits to be measured (``run_secs: null``)."""
    target: str
    """JSON of the TVM target, keys sorted."""

    @property
    def measured(self) -> bool:
        """Return False for a schedule that nobody has run yet."""
        return bool(self.seconds)

    @property
    def failed(self) -> bool:
        """The program did not build or run when it was tuned."""
        return any(value >= FAILED_SECONDS for value in self.seconds)


@dataclass(frozen=True)
class BadLine:
    """This line cannot be used, for this reason."""

    number: int
    reason: str

    def __str__(self) -> str:
        return f"{self.number}: {self.reason}"


def find_file(folder: Path, name: str) -> Path:
    """Find ``name`` or ``name.gz`` in ``folder``; ``DataError`` where neither is there."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"{folder} is not a MetaSchedule database: neither {name} nor {name}.gz is in it")


def is_database(folder: Path) -> bool:
    """Return True where the folder holds both files of a MetaSchedule database."""
    names = (RECORD_FILE, WORKLOAD_FILE)
    return all((folder / name).is_file() or (folder / f"{name}.gz").is_file() for name in names)


def _graph_of_line(path: Path, number: int, line: bytes) -> str:
    """The JSON graph inside one workload line: base64 of an 8-byte length and the text."""
    try:
        _hash, packed = parse_json(line)
        raw = base64.b64decode(packed, validate=True)
        (length,) = struct.unpack_from("<Q", raw)
        if length > len(raw) - 8:
            raise ValueError(f"{len(raw) - 8} of {length} bytes")
        return raw[8 : 8 + length].decode("utf-8")
    except (ValueError, TypeError, RecursionError, struct.error) as error:
        raise DataError(f"{path} line {number}: not a workload ({error})") from error


def read_workloads(folder: Path) -> list[tvm.IRModule | BadLine]:
    """Read unscheduled modules in file order, converted to TVM 0.27 where they are older.

    A workload that cannot be restored comes as a ``BadLine`` in its place, so that the others keep their index.
    ``DataError``: there is none, or all of them are of a TVM whose format is not read here.
    """
    path = find_file(folder, WORKLOAD_FILE)
    modules: list[tvm.IRModule | BadLine] = []
    foreign = ""
    for number, line in lines_of(path):
        where = f"workload line {number}"
        try:
            graph = _graph_of_line(path, number, line)
            if foreign := check_writer(graph):
                raise DataError(f"{where}: {foreign}")
            legacy = is_legacy_graph(graph)
            modules.append(parse_text(legacy_to_script(graph), where) if legacy else load_graph(graph, where))
        except CdmppError as error:
            modules.append(BadLine(number, str(error)))
    if not modules:
        raise DataError(f"{path} is empty: no workload in it")
    if foreign and all(isinstance(one, BadLine) for one in modules):
        raise DataError(f"{path}: {foreign}")
    return modules


def read_lines(folder: Path) -> Iterator[TuningLine | BadLine]:
    """Yield every record of the database in file order, failed ones too; a broken line comes as a ``BadLine``.

    A gzip file that ends early raises ``DataError`` with the last good line number.
    """
    path = find_file(folder, RECORD_FILE)
    for number, line in lines_of(path):
        try:
            yield _parse(number, line)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            yield BadLine(number, str(error) or type(error).__name__)


_compact = functools.partial(json.dumps, sort_keys=True, separators=(",", ":"))


def _parse(number: int, line: bytes) -> TuningLine:
    try:
        value = parse_json(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from None
    except ValueError as error:
        raise ValueError(f"not JSON that can be read: {error}") from None
    match value:
        case [int() as workload, [[list() as instructions, list() as decisions], seconds, target, *_]]:
            pass
        case _:
            raise ValueError("expected [workload index, [[instructions, decisions], run_secs, target, args_info]]")
    if seconds == [] or not isinstance(seconds, list | None):
        raise ValueError("run_secs is missing: a list of seconds, or null for a schedule that was not measured yet")
    for repeat in seconds or ():
        if isinstance(repeat, bool) or not isinstance(repeat, int | float) or not math.isfinite(repeat) or repeat <= 0:
            raise ValueError(f"run_secs holds {repeat}: must be a positive number of seconds")
    if not isinstance(target, dict) or "kind" not in target:
        raise ValueError("the target lacks its kind")
    schedule, text = map(_compact, (convert_trace([instructions, decisions]), target))
    return TuningLine(number, workload, schedule, tuple(map(float, seconds or ())), sys.intern(text))
