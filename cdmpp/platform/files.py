"""Files that are either complete or absent: write beside the target, then rename."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cdmpp.errors import DataError
from cdmpp.platform.content import content_of, lines_of, parquet_batches, parse_json, read_parquet
from cdmpp.platform.limits import numbers as numbers_within
from cdmpp.platform.limits import shown

if TYPE_CHECKING:  # it takes longer to import than most commands take otherwise
    import pyarrow as pa

SCHEMA_VERSION = 1
"""The newest version of records and tables that is read."""
REPEATS_FILE, FAILURES_FILE, PLAN_FILE = "repeats.jsonl", "failures.jsonl", "plan.json"
"""Beside the records of a data set: programs measured again much later, what could not be measured, what is to be."""
_POSITIVE = numbers_within(0, 1e15, above=True)
_VERSION_KEY = b"cdmpp.schema_version"


def write_atomic(path: Path, write: Callable[[Path], object], new: bool = False) -> None:
    """Call ``write`` on a temporary name beside ``path`` and rename it into place; on failure ``path`` stays as it was.

    ``OSError`` (disk full, no permission) becomes a ``DataError`` that names the file, and so does what
    ``check_place`` refuses. With ``new`` a file that is there already, or comes into being meanwhile, raises
    ``FileExistsError`` and is left alone.
    """
    check_place(path)
    target = Path(os.path.realpath(path))  # a rename would replace a link, not the file that it names
    temporary = _temporary(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        (_place_new if new else os.replace)(temporary, target)
    except OSError as error:
        if new and isinstance(error, FileExistsError) and path.exists():
            raise
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "free some space, or choose another folder," if is_full else "choose another folder"
        again = " and run the same command again, it continues where it stopped" if is_full else ""
        raise DataError(
            f"cannot write {path}: {error.strerror or error}. Nothing was changed there; {advice}{again}"
        ) from error
    finally:
        with suppress(OSError):  # the folder itself is out of reach: the error above says so
            temporary.unlink(missing_ok=True)


def check_place(path: Path) -> None:
    """Raise ``DataError`` where no plain file can have this name: a folder, device, pipe or socket has, or it is long.

    A rename would put a file in the place of a device.
    """
    for name in (path, _temporary(path)):
        try:
            mode = name.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):  # the folder is looked at when something is written
            continue
        except (OSError, ValueError) as error:
            raise DataError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "a device, pipe or socket, no plain file"
            raise DataError(f"cannot write {path}: it is {what}")


def _temporary(path: Path) -> Path:
    # Threads may write one file, and containers that share a cache may have the same ids of them.
    return path.parent / f".{path.name}.{threading.get_native_id()}{_TOKEN}.tmp"


_TOKEN = secrets.token_hex(3)


def _place_new(temporary: Path, path: Path) -> None:
    """Give a finished file its name, which must be free: a link, unlike a rename, never replaces anything."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        if path.exists():  # a file system without links: what is left is to look first
            raise FileExistsError(errno.EEXIST, "exists", str(path)) from error
        os.replace(temporary, path)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, atomically, its line ends as they are."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``content`` atomically."""
    write_atomic(path, lambda temporary: temporary.write_bytes(content))


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def plain(value: Any) -> Any:
    """Return the value as strict JSON holds it: NaN and infinity (no task counts towards a metric) become null."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> Any:
    """Parse a JSON file; ``DataError`` names the file where it is missing or broken."""
    try:
        return parse_json(content_of(path))
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"cannot read {path} as JSON: {error}") from error


def read_lines(path: Path) -> list[Any]:
    """Read values of a JSON-lines file that may end in a line cut short by a kill; empty where there is none."""
    values = []
    for _, line in lines_of(path) if path.exists() else ():
        with suppress(ValueError):
            values.append(parse_json(line))
    return values


def read_entries(path: Path, device: str, *numbers: str) -> list[dict[str, Any]]:
    """Read a journal's entries of ``device``, by ``read_lines``; all have ``id`` or ``record_id``.

    ``DataError`` names the file and an entry that is none: no object, without ids, or without positive ``numbers``.
    """
    found = []
    for entry in read_lines(path):
        texts = ("record_id",) if numbers else ("id", "task_id", "cause")
        if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in ("device", *texts)):
            raise DataError(f"{path} holds {shown(entry)}: expected an object with device, {', '.join(texts)}")
        for name in numbers:
            _POSITIVE.fitting(f"{path}: {name}", entry.get(name))
        if entry["device"] == device:
            found.append(entry)
    return found


def append_lines(path: Path, values: Iterable[Any]) -> None:
    """Add ``values`` to a JSON-lines file; a last line that a kill cut short is ended first, so that it stays alone."""
    text = "".join(json.dumps(value) + "\n" for value in values)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            text = text if file.read() == b"\n" else "\n" + text
        file.write(text.encode())


def write_table(path: Path, table: pa.Table, new: bool = False) -> None:
    """Write a Parquet file with the schema version in its metadata, atomically; ``new`` as in ``write_atomic``."""
    import pyarrow.parquet as pq

    metadata = {**(table.schema.metadata or {}), _VERSION_KEY: str(SCHEMA_VERSION).encode()}
    stamped = table.replace_schema_metadata(metadata)
    # Schedules are long texts, all different: zstd finds what they share, and dictionaries hide it. Level 19 makes
    # files 4 % smaller than 12, in six times the time. Repeats of a latency have their first bytes in common, which
    # stand together where the bytes of numbers are split.
    split = [name for name in ("latency_samples_s",) if name in table.column_names]
    options: dict[str, Any] = {"compression": "zstd", "compression_level": 12, "use_dictionary": False}
    options["use_byte_stream_split"] = [f"{name}.list.element" for name in split]
    write_atomic(path, lambda temporary: pq.write_table(stamped, temporary, **options), new)


def read_table(path: Path) -> pa.Table:
    """Read a Parquet file; refuses corrupt or truncated files and newer schema versions with a ``DataError``."""
    table = read_parquet(path)
    _check_schema(path, table.schema)
    return table


def table_batches(path: Path) -> Iterator[pa.Table]:
    """Yield what ``read_table`` reads, an empty table and then a few thousand rows at a time."""
    import pyarrow as pa

    for number, batch in enumerate(parquet_batches(path)):
        if number == 0:
            _check_schema(path, batch.schema)
        yield pa.Table.from_batches([batch])


def _check_schema(path: Path, schema: pa.Schema) -> None:
    version = (schema.metadata or {}).get(_VERSION_KEY, str(SCHEMA_VERSION).encode()).decode("utf-8", "replace")
    check_version(path, int(version) if version.isdecimal() else version)


def check_version(path: Path, version: int | str) -> None:
    """Raise ``DataError`` where a file or folder is of a newer schema."""
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise DataError(
            f"{path} has schema version {version}, this cdmpp reads up to {SCHEMA_VERSION}: install a newer cdmpp"
        )
