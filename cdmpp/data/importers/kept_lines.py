"""Measured lines of a database while it is imported: traces wait in a scratch file, a hundred bytes a line in memory.

Lines of the same workload, target and trace are repeats of one program. A program has the place of its first line.
"""

from __future__ import annotations

import hashlib
import tempfile
from array import array
from collections.abc import Collection, Iterator
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cdmpp.platform.paths import cache_root
from cdmpp.programs.database import TuningLine

_PORTION = 2000
"""Lines that are held at a time."""
_SCHEMA = pa.schema(
    [("number", pa.int64()), ("workload", pa.int64()), ("target", pa.string()), ("schedule", pa.string())]
)
_DIGEST_BYTES = 16
Repeats = list[tuple[float, ...]]


class KeptLines:
    """Append lines with ``append`` and then read their different programs; ``close`` deletes the scratch file."""

    def __init__(self) -> None:
        folder = cache_root() / "scratch"
        folder.mkdir(parents=True, exist_ok=True)
        # Without a name: a kill leaves nothing behind.
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._writer = pq.ParquetWriter(
            self._file, _SCHEMA, compression="zstd", compression_level=1, use_dictionary=["target"]
        )
        self._waiting: list[TuningLine] = []
        self._digests = bytearray()
        self._workloads, self._counts, self._samples = array("q"), array("q"), array("d")

    def append(self, line: TuningLine) -> None:
        """Keep a line that was measured."""
        text = f"{line.workload}\n{line.target}\n{line.schedule}"
        self._digests += hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
        self._workloads.append(line.workload)
        self._counts.append(len(line.seconds))
        self._samples.extend(line.seconds)
        self._waiting.append(line)
        if len(self._waiting) == _PORTION:
            self._write()

    def __len__(self) -> int:
        """Number of different programs; nothing can be appended afterwards."""
        return len(self._first)

    @property
    def workloads(self) -> list[int]:
        """The index of each program's workload."""
        return np.frombuffer(self._workloads, np.int64)[self._first].tolist() if len(self) else []

    def programs(self, wanted: Collection[int] | None = None) -> Iterator[tuple[TuningLine, Repeats]]:
        """Yield first line and repeats of each program, or of those at the ``wanted`` places."""
        lines = self._first if wanted is None else self._first[sorted(wanted)]
        start = 0
        for batch in pq.ParquetFile(self._file).iter_batches(_PORTION):
            own = lines[np.searchsorted(lines, start) : np.searchsorted(lines, start + len(batch))]
            for place, row in zip(own.tolist(), batch.take(pa.array(own - start)).to_pylist(), strict=True):
                repeats = self._repeats(place)
                yield TuningLine(seconds=repeats[0], **row), repeats
            start += len(batch)

    def close(self) -> None:
        """Delete the scratch file."""
        self._writer.close()
        self._file.close()

    def _write(self) -> None:
        if self._waiting:
            rows = [{name: getattr(line, name) for name in _SCHEMA.names} for line in self._waiting]
            self._writer.write_table(pa.Table.from_pylist(rows, _SCHEMA))
            self._waiting.clear()

    @cached_property
    def _first_of(self) -> np.ndarray:
        """(lines,): the first line of the same program."""
        self._write()
        self._writer.close()
        digests = np.frombuffer(bytes(self._digests), f"S{_DIGEST_BYTES}")
        _, first, inverse = np.unique(digests, return_index=True, return_inverse=True)
        return first[inverse]

    @cached_property
    def _first(self) -> np.ndarray:
        """(programs,): first lines, which rise."""
        return np.unique(self._first_of)

    @cached_property
    def _members(self) -> np.ndarray:
        """(lines,): lines of the first program, of the second, and so on."""
        return np.argsort(self._first_of, kind="stable")

    @cached_property
    def _bounds(self) -> np.ndarray:
        return np.append(np.searchsorted(self._first_of[self._members], self._first), len(self._members))

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.append(0, np.cumsum(np.frombuffer(self._counts, np.int64)))

    def _repeats(self, line: int) -> Repeats:
        place = int(np.searchsorted(self._first, line))
        members = self._members[self._bounds[place] : self._bounds[place + 1]].tolist()
        return [tuple(self._samples[self._starts[one] : self._starts[one + 1]]) for one in members]
