"""Cache: files that are made again when missed, by kind, within a limit: what was not used for longest goes first.

Behind it stand the files that came with the package (``shipped``), which are put into it where they are missed.
Every file in it is written whole or not at all, and named by what it follows from and by the version of what made it.
So any of them may go at any time, and a process that was killed leaves at most an unfinished file under another name.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from cdmpp.errors import DataError, UsageError
from cdmpp.platform.files import read_json, write_atomic, write_json, write_text
from cdmpp.platform.limits import shown
from cdmpp.platform.lock import LOCK_FILE
from cdmpp.platform.paths import cache_root
from cdmpp.platform.shipped import shipped_files

log = logging.getLogger(__name__)
LIMIT, DEFAULT_LIMIT_BYTES = "CDMPP_CACHE_LIMIT", 10 * 10**9
"""Variable of the environment that says the limit, such as ``500MB``, and what holds without it."""


@dataclass(frozen=True)
class Kind:
    """One folder of the cache holds such entries."""

    text: str
    """This says what they are, for people."""
    depth: int
    """Levels below the cache at which an entry stands; it goes as a whole."""


KINDS: Mapping[str, Kind] = {
    "answers": Kind("answers to questions about networks", 2),
    "networks": Kind("graphs of networks", 3),
    "reads": Kind("operators of networks", 3),
    "works": Kind("what a rank of a training job runs", 3),
    "parsed": Kind("tensor programs that are parsed already", 3),
    "asts": Kind("compact ASTs of data sets", 3),
    "codes": Kind("code vectors of CPU programs", 3),
    "gpu_codes": Kind("code vectors of GPU programs", 3),
    "gpu_programs": Kind("compiled GPU programs", 4),
    "per_store": Kind("features of TVM's own extractor", 3),
    "candidates": Kind("schedules that were drawn for networks", 3),
    "chosen": Kind("schedules that were chosen of them", 3),
    "left_out": Kind("errors on devices that a training left out", 2),
    "imported": Kind("tuning databases as data sets", 2),
    "restored": Kind("programs of imports that were stopped", 2),
    "downloads": Kind("public measurements that were fetched", 2),
    "mapped": Kind("tables of running processes", 2),
}
"""Folder of the cache -> what it holds. Files elsewhere in it are of the kind ``other``, an entry each."""
OTHER = Kind("anything else", 99)
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_COUNT, _LOCK, _GONE = ".size.json", ".cache.lock", ".gone-"
_KEPT_SHARE = 0.9
"""Entries go until this share of the limit is left: the next write need not look again."""
_COUNTED_S = 86_400.0
"""The sum of all writes stands for the size for so long: files may be deleted by hand."""
IN_USE_S = 600.0
"""A folder that was used so lately may be read or written by another process, and stays."""
UNFINISHED_S = 3_600.0
"""A write that was not finished in this time never will be."""
_told: set[Path] = set()  # folders of which was said that nothing is kept there


@dataclass(frozen=True)
class Entry:
    """An entry is a file of the cache, or a folder whose files belong together."""

    kind: str
    path: Path
    bytes: int
    used_at: float
    """Seconds since 1970 when it was written or read last."""
    is_unfinished: bool = False
    """True for what a process has begun to write."""


def limit_bytes() -> int:
    """Return the bytes that the cache may hold; ``UsageError`` where the environment says no size."""
    given = os.environ.get(LIMIT, "")
    if not given:
        return DEFAULT_LIMIT_BYTES
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B)?", given.strip(), re.IGNORECASE)
    if match is None:
        raise UsageError(f"{LIMIT} is {shown(given)}: give a size such as 500MB or 10GB, or 0 to keep nothing")
    return int(float(match[1]) * _UNITS[(match[2] or "").upper()])


def cached_json(path: Path) -> Any:
    """Read a file of the cache, which then was used last; ``DataError`` where it is missing or broken."""
    bring(path)
    value = read_json(path)
    note_use(path)
    return value


def bring(path: Path) -> None:
    """Put a file of the cache, or the files of a folder, into their places if they are missing and shipped."""
    with suppress(DataError):  # it cannot be written: what is missing is made again
        for own, content in shipped_files(path):
            keep_bytes(own, content)


def keep(path: Path, write: Callable[[], None]) -> None:
    """Write a file of the cache by ``write``, atomically, and keep the cache within its limit.

    Where the disk is full, or the folder not ours, this is said once of each kind and nothing is kept: what was worked
    out is there all the same. Errors of files elsewhere are raised.
    """
    try:
        write()
    except DataError as error:
        root = cache_root()
        if not path.is_relative_to(root):
            raise
        if (kind := root / path.relative_to(root).parts[0]) not in _told:
            _told.add(kind)
            log.warning("%s. What belongs there is worked out again the next time", str(error).partition(". ")[0])
        return
    note_write(path)


@contextmanager
def working_files() -> Iterator[None]:
    """Turn an ``OSError`` of files in the cache that the work cannot do without into a ``DataError``."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write {error.filename or cache_root()}: {error.strerror or error}. Free some space there, or let "
            "CDMPP_CACHE name another folder"
        ) from error


def keep_json(path: Path, value: Any) -> None:
    """Write a file of the cache as ``keep`` does."""
    keep(path, lambda: write_json(path, value))


def keep_text(path: Path, text: str) -> None:
    """Write a file of the cache as ``keep`` does."""
    keep(path, lambda: write_text(path, text))


def keep_bytes(path: Path, content: bytes) -> None:
    """Write a file of the cache, atomically, and keep the cache within its limit; ``DataError``: it cannot be."""
    write_atomic(path, lambda temporary: temporary.write_bytes(content))
    note_write(path)


def note_use(path: Path) -> None:
    """Say that a file or folder of the cache was read: it is the last to go."""
    with suppress(OSError):  # deleted meanwhile, or of another user
        os.utime(path)


def note_write(path: Path) -> None:
    """Say that a file or folder was written; where all of them pass the limit, those used longest ago go."""
    root = cache_root()
    if not path.is_relative_to(root):  # such as a scratch folder
        return
    # A cache that cannot be tidied is no reason to end.
    with suppress(OSError, Timeout, DataError), FileLock(root / _LOCK, timeout=1.0):
        count = _counted(root)
        total, since = (count[0] + _bytes_of(path), count[1]) if count else (None, 0.0)
        if total is None or total > limit_bytes():
            total, since = _trimmed(root, limit_bytes()), time.time()
        write_json(root / _COUNT, {"bytes": total, "since": since})


def entries(root: Path | None = None) -> list[Entry]:
    """List all entries, what is unfinished among them."""
    root = cache_root() if root is None else root
    found = []
    for folder in sorted(_inside(root)):
        kind = folder.name if folder.name in KINDS else "other"
        depth = (KINDS.get(folder.name) or OTHER).depth
        found += [_entry(kind, path) for path in _at(folder, depth - 1) if path.name not in (_COUNT, _LOCK)]
    return found


def clear(kind: str | None = None) -> tuple[int, int]:
    """Delete all entries, or those of a kind; returns how many, and their bytes.

    Folders that another process writes stay, and so do tables of running processes.
    """
    chosen = [one for one in entries() if kind in (None, one.kind) and not (one.kind == "mapped" and _is_fresh(one))]
    gone = [one for one in chosen if _delete(one.path)]
    with suppress(OSError):
        (cache_root() / _COUNT).unlink(missing_ok=True)
    return len(gone), sum(one.bytes for one in gone)


def _trimmed(root: Path, most: int) -> int:
    """Delete what is unfinished for long, and the entries used longest ago down to a part of ``most``; bytes left."""
    kept = []
    for one in entries(root):
        if one.is_unfinished and not _is_fresh(one):
            _delete(one.path)
        else:
            kept.append(one)
    total = sum(one.bytes for one in kept)
    if total <= most:
        return total
    now = time.time()
    for one in sorted(kept, key=lambda one: one.used_at):
        if total <= _KEPT_SHARE * most:
            break
        in_use = one.is_unfinished or (one.path.is_dir() and now - one.used_at < IN_USE_S)
        if not in_use and _delete(one.path):
            total -= one.bytes
    return total


def _delete(path: Path) -> bool:
    """Delete a file, or a folder under another name first, so that nobody meets a part of it; False where it stays."""
    try:
        if not path.is_dir() or path.is_symlink():
            path.unlink(missing_ok=True)
            return True
        lock = path / LOCK_FILE
        if lock.exists():
            with FileLock(lock, timeout=0.0):
                return _removed(path)
        return _removed(path)
    except (OSError, Timeout):
        return False


def _removed(folder: Path) -> bool:
    gone = folder if folder.name.startswith(_GONE) else folder.with_name(f"{_GONE}{secrets.token_hex(6)}")
    if gone != folder:
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
    return True


def _at(path: Path, levels: int) -> Iterator[Path]:
    """Paths so many levels below ``path``; files that stand higher are paths of their own."""
    if levels == 0 or not path.is_dir() or path.name.startswith(_GONE):
        yield path
        return
    for one in sorted(_inside(path)):
        yield from _at(one, levels - 1)


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _entry(kind: str, path: Path) -> Entry:
    size, used_at = 0, 0.0
    for one in (path, *path.rglob("*")) if path.is_dir() else (path,):
        with suppress(OSError):  # deleted meanwhile
            state = one.stat()
            size += 0 if one.is_dir() else state.st_size
            used_at = max(used_at, state.st_mtime)
    name = path.name
    is_unfinished = kind == "mapped" or name.startswith(_GONE) or (name.startswith(".") and name.endswith(".tmp"))
    return Entry(kind, path, size, used_at, is_unfinished)


def _is_fresh(one: Entry) -> bool:
    return not one.path.name.startswith(_GONE) and time.time() - one.used_at < UNFINISHED_S


def _bytes_of(path: Path) -> int:
    return _entry("", path).bytes


def _counted(root: Path) -> tuple[int, float] | None:
    """Bytes by the sum of all writes, and since when; None where nobody counted, or long ago."""
    with suppress(DataError, KeyError, TypeError, ValueError):
        stored = read_json(root / _COUNT)
        count, since = int(stored["bytes"]), float(stored["since"])
        if 0 <= time.time() - since < _COUNTED_S:
            return count, since
    return None
