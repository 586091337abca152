"""AstSpool: ASTs of more programs than memory should hold, appended to flat files that are mapped and not read."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from cdmpp.ast.layout import KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.ast.table import AstTable, offsets_of
from cdmpp.machine_code.code_features import CODE_WIDTH

_PORTION = 8192
"""Programs that are held at a time where tables are joined."""
_FILES = {"leaves": LEAF_WIDTH, "places": 3, "kernels": KERNEL_WIDTH, "codes": CODE_WIDTH}


@dataclass(frozen=True)
class MappedTable(AstTable):
    """A table whose large arrays are files. The last row of each mapped array is zeros, for padding to point at."""

    mapped_leaves: np.ndarray = None  # type: ignore[assignment]
    """(sum of leaves + 1, LEAF_WIDTH) float32."""
    mapped_places: np.ndarray = None  # type: ignore[assignment]
    """(sum of leaves + 1, 3) int32: position, serial position, kernel."""
    mapped_kernels: np.ndarray = None  # type: ignore[assignment]
    """(sum of kernels + 1, KERNEL_WIDTH) float32."""


class AstSpool:
    """Write programs with ``append``, get them all as one table from ``finish``; memory stays that of one portion."""

    def __init__(self, parent: Path):
        parent.mkdir(parents=True, exist_ok=True)
        self.folder = tempfile.TemporaryDirectory(prefix="asts-", dir=parent, ignore_cleanup_errors=True)
        self.files: dict[str, BinaryIO] = {name: (Path(self.folder.name) / name).open("wb") for name in _FILES}
        self.leaf_counts: list[np.ndarray] = []
        self.kernel_counts: list[np.ndarray] = []
        self.kinds: list[np.ndarray] = []
        self.coded = False

    def append(self, table: AstTable) -> None:
        """All programs of ``table``, which itself may be mapped."""
        for start in range(0, len(table), _PORTION):
            part = table.take(np.arange(start, min(start + _PORTION, len(table))))
            places = np.stack([part.leaf_positions, part.leaf_serial_positions, part.leaf_kernels], axis=1)
            self._write("leaves", part.leaf_features, np.float32)
            self._write("places", places, np.int32)
            self._write("kernels", part.kernel_features, np.float32)
            self._write("codes", part.codes_or_nan(), np.float32)
            self.coded |= part.codes is not None
            self.leaf_counts.append(np.diff(part.leaf_offsets))
            self.kernel_counts.append(np.diff(part.kernel_offsets))
            self.kinds.append(part.target_kinds)

    def finish(self) -> MappedTable:
        """The table; nothing can be appended afterwards."""
        none = np.zeros(0, np.int64)
        leaf_offsets = offsets_of(np.concatenate([none, *self.leaf_counts]))
        kernel_offsets = offsets_of(np.concatenate([none, *self.kernel_counts]))
        n, n_leaves, n_kernels = len(leaf_offsets) - 1, int(leaf_offsets[-1]), int(kernel_offsets[-1])
        for name, width in _FILES.items():
            self._write(name, np.zeros((1, width)), np.int32 if name == "places" else np.float32)
            self.files[name].close()
        leaves = self._mapped("leaves", n_leaves, np.float32)
        places = self._mapped("places", n_leaves, np.int32)
        kernels = self._mapped("kernels", n_kernels, np.float32)
        codes = self._mapped("codes", n, np.float32)[:-1] if self.coded else None
        self.folder.cleanup()  # the maps hold the files until nobody holds the table, and a kill leaves nothing behind
        return MappedTable(
            leaves[:-1],
            places[:-1, 0],
            places[:-1, 1],
            places[:-1, 2],
            leaf_offsets,
            kernels[:-1],
            kernel_offsets,
            np.concatenate([*self.kinds, np.zeros(0, np.uint8)]),
            codes,
            leaves,
            places,
            kernels,
        )

    def _write(self, name: str, rows: np.ndarray, dtype: type) -> None:
        self.files[name].write(np.ascontiguousarray(rows, dtype).data)

    def _mapped(self, name: str, rows: int, dtype: type) -> np.ndarray:
        path = Path(self.folder.name) / name
        # Writable only because torch asks for it; copy-on-write, so the file never changes.
        return np.memmap(path, dtype, "c", shape=(rows + 1, _FILES[name]))


def concat(tables: Sequence[AstTable], parent: Path) -> AstTable:
    """As ``AstTable.concat``, mapped again (below ``parent``) where one of ``tables`` is."""
    if len(tables) == 1:
        return tables[0]
    if not any(isinstance(table, MappedTable) for table in tables):
        return AstTable.concat(tables)
    spool = AstSpool(parent)
    for table in tables:
        spool.append(table)
    return spool.finish()
