"""A table of more ASTs than memory should hold: they are appended to flat files that are mapped and not read."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cdmpp.ast.layout import KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.ast.table import AstTable, offsets_of
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH

_PORTION = 8192
"""Programs that are held at a time where tables are joined."""
_FILES = {
    "leaves": (np.float32, LEAF_WIDTH),
    "places": (np.int32, 3),
    "kernels": (np.float32, KERNEL_WIDTH),
    "codes": (np.float32, CODE_WIDTH),
}


@dataclass(frozen=True)
class MappedTable(AstTable):
    """The large arrays of this table are files. The last row of each is zeros, for padding to point at."""

    mapped_leaves: np.ndarray = None  # type: ignore[assignment]
    """(sum of leaves + 1, LEAF_WIDTH) float32."""
    mapped_places: np.ndarray = None  # type: ignore[assignment]
    """(sum of leaves + 1, 3) int32: position, serial position, kernel."""
    mapped_kernels: np.ndarray = None  # type: ignore[assignment]
    """(sum of kernels + 1, KERNEL_WIDTH) float32."""

    def __reduce__(self) -> tuple[Any, ...]:
        """The table as plain arrays: another process cannot map files that are gone."""
        arrays = (getattr(self, field.name) for field in fields(AstTable))
        return AstTable, tuple(None if array is None else np.array(array) for array in arrays)


class MappedTableWriter:
    """Write programs with ``append``, get them all as one table from ``finish``; memory stays that of one portion."""

    def __init__(self, parent: Path):
        parent.mkdir(parents=True, exist_ok=True)
        self.folder = tempfile.TemporaryDirectory(prefix="asts-", dir=parent, ignore_cleanup_errors=True)
        self.files: dict[str, BinaryIO] = {name: (Path(self.folder.name) / name).open("wb") for name in _FILES}
        self.shapes = [np.zeros((0, 3), np.int64)]
        """(programs, 3): leaves, kernels, target kind."""
        self.coded = False

    def append(self, table: AstTable) -> None:
        """Append all programs of ``table``, which itself may be mapped."""
        for start in range(0, len(table), _PORTION):
            part = table.take(np.arange(start, min(start + _PORTION, len(table))))
            places = np.stack([part.leaf_positions, part.leaf_serial_positions, part.leaf_kernels], axis=1)
            arrays = (part.leaf_features, places, part.kernel_features, part.codes_or_nan())
            for name, array in zip(_FILES, arrays, strict=True):
                self._write(name, array)
            self.coded |= part.codes is not None
            counts = (np.diff(part.leaf_offsets), np.diff(part.kernel_offsets), part.target_kinds)
            self.shapes.append(np.stack(counts, axis=1))

    def finish(self) -> MappedTable:
        """Return the table; nothing can be appended afterwards."""
        leaf_counts, kernel_counts, kinds = np.concatenate(self.shapes).T
        leaf_offsets, kernel_offsets = offsets_of(leaf_counts), offsets_of(kernel_counts)
        lengths = (leaf_offsets[-1], leaf_offsets[-1], kernel_offsets[-1], len(kinds))
        mapped = []
        for (name, (dtype, width)), length in zip(_FILES.items(), lengths, strict=True):
            self._write(name, np.zeros((1, width)))
            self.files[name].close()
            # Writable only because torch asks for it; copy-on-write, so the file never changes.
            mapped.append(np.memmap(self.files[name].name, dtype, "c", shape=(int(length) + 1, width)))
        leaves, places, kernels, codes = mapped
        self.folder.cleanup()  # the maps hold the files until nobody holds the table, and a kill leaves nothing behind
        return MappedTable(
            leaves[:-1],
            places[:-1, 0],
            places[:-1, 1],
            places[:-1, 2],
            leaf_offsets,
            kernels[:-1],
            kernel_offsets,
            kinds.astype(np.uint8),
            codes[:-1] if self.coded else None,
            leaves,
            places,
            kernels,
        )

    def _write(self, name: str, rows: np.ndarray) -> None:
        self.files[name].write(np.ascontiguousarray(rows, _FILES[name][0]).data)


def mapped(array: np.ndarray, parent: Path) -> np.ndarray:
    """Put ``array`` into a mapped file below ``parent``, which nothing but the array that is returned holds."""
    if not array.size:
        return array
    with tempfile.TemporaryFile(dir=parent) as file:
        np.ascontiguousarray(array).tofile(file)
        return np.asarray(np.memmap(file, array.dtype, "c", shape=array.shape))


def concat(tables: Sequence[AstTable], parent: Path) -> AstTable:
    """Put the programs of ``tables`` one table after the other, in mapped files below ``parent``."""
    if len(tables) == 1:
        return tables[0]
    writer = MappedTableWriter(parent)
    for table in tables:
        writer.append(table)
    return writer.finish()
