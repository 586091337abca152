"""Rows of several folders, each different one once, in the order of their content: kept in a file, not in memory."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from cdmpp.data.schema import Record
from cdmpp.errors import DataError
from cdmpp.platform.cache import working_files
from cdmpp.platform.paths import cache_root

_NAMES = sorted(field.name for field in dataclasses.fields(Record))
_TABLE = "CREATE TABLE rows (digest BLOB UNIQUE, device TEXT, record_id TEXT, content TEXT, folders TEXT)"
_MEMORY_KB = 65536
Program = tuple[str, str]
"""(device, record id)."""


@dataclass(frozen=True)
class UnitedRow:
    """A row, and the folders that hold it."""

    record: Record
    folders: tuple[Path, ...]

    @property
    def program(self) -> Program:
        """Return (device, record id)."""
        return self.record.device, self.record.record_id

    def is_by(self, name: str) -> bool:
        """Return True where ``name`` is its host, or a folder that holds it."""
        return name == self.record.host or Path(name) in self.folders


class UnitedRows:
    """Rows of ``folders``: ``add`` them, then read them by program. They go with this object."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Begin with none; ``DataError`` where the cache cannot be written, which has room for all of them."""
        self._folders = tuple(folders)
        root = cache_root() / "scratch"
        with working_files():
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=root) as file:  # without a name from here on: a kill leaves nothing
                self._rows = sqlite3.connect(file.name)
                # What no other process reads needs no journal.
                for setting in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_MEMORY_KB}"):
                    self._rows.execute(f"PRAGMA {setting}")
                self._rows.execute(_TABLE)

    def add(self, folder: Path, records: Iterable[Record]) -> int:
        """Add what ``folder`` holds; returns the number of its rows."""
        place, before = str(self._folders.index(folder)), self._rows.total_changes
        added = "INSERT INTO rows VALUES (?, ?, ?, ?, ?) ON CONFLICT (digest) DO UPDATE SET folders = folders || ?"
        with _written(), self._rows:
            for record in records:
                text = _content(record)
                self._rows.execute(added, (_digest(text), record.device, record.record_id, text, place, f",{place}"))
        return self._rows.total_changes - before

    def programs(self, measured_again: bool = False) -> Iterator[list[UnitedRow]]:
        """Yield the rows of one program after the other, or only of those that have several."""
        several = "SELECT device, record_id FROM rows GROUP BY device, record_id HAVING count(*) > 1"
        where = f"WHERE (device, record_id) IN ({several})" if measured_again else ""
        ordered = f"SELECT content, folders FROM rows {where} ORDER BY device, record_id, content"
        with _written():
            self._rows.execute("CREATE INDEX IF NOT EXISTS programs ON rows (device, record_id)")
            found = self._rows.execute(ordered)
            for _, group in groupby(map(self._row, found), key=lambda row: row.program):
                yield list(group)

    def folders_of(self, record: Record) -> tuple[Path, ...]:
        """Return the folders that hold ``record``; ``DataError`` where none does."""
        asked = "SELECT folders FROM rows WHERE digest = ?"
        found = self._rows.execute(asked, (_digest(_content(record)),)).fetchone()
        if found is None:
            raise DataError(f"no folder holds this row of record {record.record_id}")
        return self._named(found[0])

    def _row(self, found: tuple[str, str]) -> UnitedRow:
        values = dict(zip(_NAMES, json.loads(found[0])[2:], strict=True))
        record = Record(**{**values, "latency_samples_s": tuple(values["latency_samples_s"])})
        return UnitedRow(record, self._named(found[1]))

    def _named(self, places: str) -> tuple[Path, ...]:
        return tuple(self._folders[place] for place in sorted(set(map(int, places.split(",")))))


def _content(record: Record) -> str:
    """Return all of a record as one text, which is what rows are sorted by: programs of a device stand together."""
    values = (getattr(record, name) for name in _NAMES)
    return json.dumps([record.device, record.record_id, *values], sort_keys=True)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


@contextmanager
def _written() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:  # such as a full disk
        raise DataError(
            f"cannot keep the rows in {cache_root()}: {error}. Free some space there, or let CDMPP_CACHE name another "
            "folder"
        ) from error
