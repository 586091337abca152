"""Measured rows of a source while it is imported: they wait in a scratch file, a hundred bytes a row in memory.

Rows with the same key are repeats of one program. A program has the place of its first row.
"""

from __future__ import annotations

import hashlib
import tempfile
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cdmpp.platform.cache import working_files
from cdmpp.platform.paths import cache_root

_PORTION = 2000
"""Rows that are held at a time."""
_DIGEST_BYTES = 16
Repeats = list[tuple[float, ...]]


class KeptProgram(NamedTuple):
    """A program is its first row, and what differs in its repeats."""

    row: dict[str, Any]
    repeats: Repeats
    """The numbers of each of its rows."""
    places: list[int]
    """The place of each of its rows among all."""


class KeptRows:
    """Append rows with ``append`` and then read their different programs; ``close`` deletes the scratch file."""

    def __init__(self, schema: pa.Schema, repetitive: Sequence[str] = ()) -> None:
        """Rows have the columns of ``schema``; those of the ``repetitive`` ones are few different texts."""
        folder = cache_root() / "scratch"
        with working_files():
            folder.mkdir(parents=True, exist_ok=True)
            # Without a name: a kill leaves nothing behind.
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._schema = schema
        self._writer = pq.ParquetWriter(
            self._file, schema, compression="zstd", compression_level=1, use_dictionary=list(repetitive)
        )
        self._waiting: list[Mapping[str, Any]] = []
        self._digests = bytearray()
        self._tasks, self._counts, self._numbers = array("q"), array("q"), array("d")

    def append(self, key: str, task: int, numbers: Sequence[float], row: Mapping[str, Any]) -> int:
        """Keep a row of the program ``key``, with the number of its task and the ``numbers`` that repeats differ in.

        Returns its place among the rows.
        """
        self._digests += hashlib.blake2b(key.encode(), digest_size=_DIGEST_BYTES).digest()
        self._tasks.append(task)
        self._counts.append(len(numbers))
        self._numbers.extend(numbers)
        self._waiting.append(row)
        if len(self._waiting) == _PORTION:
            self._write()
        return len(self._tasks) - 1

    def __len__(self) -> int:
        """Number of different programs; nothing can be appended afterwards."""
        return len(self._first)

    @property
    def tasks(self) -> list[int]:
        """The number of each program's task."""
        return np.frombuffer(self._tasks, np.int64)[self._first].tolist() if len(self) else []

    def leave_out(self, places: np.ndarray) -> None:
        """Drop the rows at these places; before anything else is asked."""
        self._dropped = places

    def programs(self, wanted: Collection[int] | None = None) -> Iterator[KeptProgram]:
        """Yield each program, or those at the ``wanted`` places among the programs."""
        rows = self._first if wanted is None else self._first[sorted(wanted)]
        start = 0
        for batch in pq.ParquetFile(self._file).iter_batches(_PORTION):
            own = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + len(batch))]
            for place, row in zip(own.tolist(), batch.take(pa.array(own - start)).to_pylist(), strict=True):
                places = self._repeated(place)
                yield KeptProgram(row, [self._numbers_of(one) for one in places], places)
            start += len(batch)

    def close(self) -> None:
        """Delete the scratch file."""
        self._writer.close()
        self._file.close()

    def _write(self) -> None:
        if not self._waiting:
            return
        with working_files():
            self._writer.write_table(pa.Table.from_pylist(self._waiting, self._schema))
        self._waiting.clear()

    _dropped = np.zeros(0, np.int64)

    @cached_property
    def _first_of(self) -> np.ndarray:
        """(rows,): the first row of the same program; the number of rows for one that was left out."""
        self._write()
        self._writer.close()
        digests = np.frombuffer(bytes(self._digests), f"S{_DIGEST_BYTES}")
        kept = np.delete(np.arange(len(digests)), self._dropped)
        _, first, inverse = np.unique(digests[kept], return_index=True, return_inverse=True)
        first_of = np.full(len(digests), len(digests))
        first_of[kept] = kept[first[inverse]]
        return first_of

    @cached_property
    def _first(self) -> np.ndarray:
        """(programs,): first rows, which rise."""
        first = np.unique(self._first_of)
        return first[first < len(self._first_of)]

    @cached_property
    def _members(self) -> np.ndarray:
        """(rows,): rows of the first program, of the second, and so on."""
        return np.argsort(self._first_of, kind="stable")

    @cached_property
    def _bounds(self) -> np.ndarray:
        ordered = self._first_of[self._members]
        return np.append(np.searchsorted(ordered, self._first), np.searchsorted(ordered, len(ordered)))

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.append(0, np.cumsum(np.frombuffer(self._counts, np.int64)))

    def _repeated(self, row: int) -> list[int]:
        place = int(np.searchsorted(self._first, row))
        found: list[int] = self._members[self._bounds[place] : self._bounds[place + 1]].tolist()
        return found

    def _numbers_of(self, row: int) -> tuple[float, ...]:
        return tuple(self._numbers[self._starts[row] : self._starts[row + 1]])
