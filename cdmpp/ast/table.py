"""AstTable: many compact ASTs as flat arrays, in memory and as Parquet. No TVM here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cdmpp.ast.columns import list_column, plain_column
from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.layout import FEATURES, KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.errors import DataError
from cdmpp.machine_code.cpu.code_features import CODE_VERSION, CODE_WIDTH
from cdmpp.platform.content import read_parquet
from cdmpp.platform.files import write_atomic

if TYPE_CHECKING:  # it takes longer to import than most commands take otherwise
    import pyarrow as pa

TARGET_KINDS = ("cpu", "gpu")
_OF_LEAVES = ("leaf_features", "leaf_positions", "leaf_serial_positions", "leaf_kernels")


def offsets_of(counts: np.ndarray) -> np.ndarray:
    """Turn (n,) sizes of ragged groups into the (n + 1,) int64 offsets at which they begin and end."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _rows(offsets: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Flat row numbers of the ragged groups ``indices``, and the offsets that these rows have among themselves."""
    lengths = offsets[indices + 1] - offsets[indices]
    ends = offsets_of(lengths)
    return np.repeat(offsets[indices] - ends[:-1], lengths) + np.arange(ends[-1]), ends


@dataclass(frozen=True)
class AstTable:
    """A table has n programs; ragged groups are rows ``offsets[i]:offsets[i+1]`` of the flat arrays."""

    leaf_features: np.ndarray
    """(sum of leaves, LEAF_WIDTH) float32."""
    leaf_positions: np.ndarray
    leaf_serial_positions: np.ndarray
    leaf_kernels: np.ndarray
    """(sum of leaves,) int32 each."""
    leaf_offsets: np.ndarray
    kernel_features: np.ndarray
    """(sum of kernels, KERNEL_WIDTH) float32."""
    kernel_offsets: np.ndarray
    """(n + 1,) int64."""
    target_kinds: np.ndarray
    """(n,) uint8, index into TARGET_KINDS."""
    codes: np.ndarray | None = None
    """(n, CODE_WIDTH) float32 code vectors, NaN rows of programs without one; None where no program has one."""

    def __len__(self) -> int:
        return len(self.leaf_offsets) - 1

    def __getitem__(self, index: int) -> CompactAST:
        leaves = slice(self.leaf_offsets[index], self.leaf_offsets[index + 1])
        kernels = slice(self.kernel_offsets[index], self.kernel_offsets[index + 1])
        return CompactAST(
            self.leaf_features[leaves],
            self.leaf_positions[leaves],
            self.leaf_serial_positions[leaves],
            self.leaf_kernels[leaves],
            self.kernel_features[kernels],
            TARGET_KINDS[self.target_kinds[index]],
            None if self.codes is None or np.isnan(self.codes[index, 0]) else self.codes[index],
        )

    def take(self, indices: Sequence[int] | np.ndarray) -> AstTable:
        """Select the programs at ``indices``, in that order."""
        index = np.asarray(indices, dtype=np.int64)
        leaves, leaf_offsets = _rows(self.leaf_offsets, index)
        kernels, kernel_offsets = _rows(self.kernel_offsets, index)
        return AstTable(
            **{name: getattr(self, name)[leaves] for name in _OF_LEAVES},
            leaf_offsets=leaf_offsets,
            kernel_features=self.kernel_features[kernels],
            kernel_offsets=kernel_offsets,
            target_kinds=self.target_kinds[index],
            codes=None if self.codes is None else self.codes[index],
        )

    @staticmethod
    def from_asts(asts: Iterable[CompactAST]) -> AstTable:
        """Make a table of these programs."""
        items = list(asts)
        codes = [a.code if a.code is not None else np.full(CODE_WIDTH, np.nan, np.float32) for a in items]

        def joined(name: str, *width: int, dtype: type = np.float32) -> np.ndarray:
            return np.concatenate([np.zeros((0, *width), dtype), *(getattr(a, name) for a in items)])

        return AstTable(
            leaf_features=joined("leaf_features", LEAF_WIDTH),
            **{name: joined(name, dtype=np.int32) for name in _OF_LEAVES[1:]},
            leaf_offsets=offsets_of(np.array([a.n_leaf for a in items], np.int64)),
            kernel_features=joined("kernel_features", KERNEL_WIDTH),
            kernel_offsets=offsets_of(np.array([a.n_kernel for a in items], np.int64)),
            target_kinds=np.array([TARGET_KINDS.index(a.target_kind) for a in items], np.uint8),
            codes=np.stack(codes).astype(np.float32) if any(a.code is not None for a in items) else None,
        )

    @staticmethod
    def concat(tables: Iterable[AstTable]) -> AstTable:
        """Put the programs of ``tables`` one table after the other."""
        return AstTable.from_asts(table[i] for table in tables for i in range(len(table)))

    def codes_or_nan(self) -> np.ndarray:
        """Return the code vectors, (n, CODE_WIDTH) float32, NaN where there is none."""
        return np.full((len(self), CODE_WIDTH), np.nan, np.float32) if self.codes is None else self.codes

    def with_codes(self, codes: np.ndarray | None) -> AstTable:
        """Replace the code vectors by ``codes``, (n, CODE_WIDTH); ``DataError`` for another shape."""
        if codes is not None and codes.shape != (len(self), CODE_WIDTH):
            raise DataError(f"code vectors of shape {codes.shape} for {len(self)} programs; need {CODE_WIDTH} each")
        return replace(self, codes=codes)


def write_asts(
    path: Path, record_ids: Sequence[str], table: AstTable, features: str = "cdmpp", effort: int = 9
) -> None:
    """Write one row a program, by ``write_atomic``. ``record_ids`` (n,) names the rows, ``features`` the leaf vectors.

    ``effort`` is zstd's, 1 to 22: what is kept for long is worth minutes, a cache is not.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if len(record_ids) != len(table):
        raise DataError(f"{len(record_ids)} record ids for {len(table)} ASTs: they must pair one to one")
    columns: dict[str, pa.Array] = {"record_id": pa.array(list(record_ids), pa.string())}
    for name in (*_OF_LEAVES[1:], "leaf_features", "kernel_features"):
        rows = getattr(table, name).astype(np.float32 if name.endswith("features") else np.int32)
        offsets = table.kernel_offsets if name == "kernel_features" else table.leaf_offsets
        ends = pa.array(offsets * (rows.shape[1] if rows.ndim > 1 else 1), pa.int64())
        columns[name] = pa.LargeListArray.from_arrays(ends, pa.array(rows.ravel()))
    columns["target_kind"] = pa.array(table.target_kinds, pa.uint8())
    metadata = {"extractor_version": FEATURES[features]}
    if table.codes is not None:
        columns["code"] = pa.FixedSizeListArray.from_arrays(pa.array(table.codes.ravel(), pa.float32()), CODE_WIDTH)
        metadata["code_version"] = CODE_VERSION
    arrow = pa.table(columns).replace_schema_metadata(metadata)
    options = {"compression": "zstd", "compression_level": effort, "use_dictionary": False}
    write_atomic(path, lambda temporary: pq.write_table(arrow, temporary, **options))


def read_asts(path: Path, features: str = "cdmpp") -> tuple[list[str], AstTable]:
    """Read ids and ASTs of one file; ``DataError``: unreadable, or by another extractor than that of ``features``."""
    import pyarrow as pa

    try:
        arrow = read_parquet(path)
    except ValueError as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise DataError(f"{path} is not a readable AST table ({reason}); delete it and derive it again") from error
    version = _version(arrow, b"extractor_version") or "unknown"
    if version != FEATURES[features]:
        kind = {v: name for name, v in FEATURES.items()}.get(version)
        remedy = "Delete the file: any command that loads the data set derives the ASTs again from the records"
        raise DataError(
            f"{path} holds {kind or 'ASTs'} of extractor version {version}; wanted here is {features}, version "
            f"{FEATURES[features]}. {f'Train with features={kind} to use it' if kind else remedy}"
        )
    try:
        return _decoded(arrow)
    except (DataError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(f"{path} is no AST table: {error}; delete it and derive it again") from error


def _decoded(arrow: pa.Table) -> tuple[list[str], AstTable]:
    """Record ids and ASTs; ``DataError`` where columns are missing, of another type, or do not fit each other."""
    import pyarrow as pa

    leaves, leaf_ends = list_column(arrow, "leaf_features", pa.float32())
    kernels, kernel_ends = list_column(arrow, "kernel_features", pa.float32())
    (positions, serial_positions, owners), ends = zip(
        *(list_column(arrow, name, pa.int32()) for name in _OF_LEAVES[1:]), strict=True
    )
    leaf_offsets, kernel_offsets = leaf_ends // LEAF_WIDTH, kernel_ends // KERNEL_WIDTH
    whole = (leaf_ends % LEAF_WIDTH == 0).all() and (kernel_ends % KERNEL_WIDTH == 0).all()
    if not whole or not all(np.array_equal(end, leaf_offsets) for end in ends):
        raise DataError("leaf and kernel vectors of this width and leaf places do not pair one to one")
    n_kernels, kinds = np.diff(kernel_offsets), plain_column(arrow, "target_kind", pa.uint8())
    if (np.diff(leaf_offsets) < 1).any() or (n_kernels < 1).any():
        raise DataError("a program without a leaf or without a kernel")
    if (owners < 0).any() or (owners >= np.repeat(n_kernels, np.diff(leaf_offsets))).any():
        raise DataError("a leaf of a kernel that its program has not")
    if (kinds >= len(TARGET_KINDS)).any():
        raise DataError(f"a target kind beyond {len(TARGET_KINDS) - 1}")
    table = AstTable(
        leaves.reshape(-1, LEAF_WIDTH),
        positions,
        serial_positions,
        owners,
        leaf_offsets,
        kernels.reshape(-1, KERNEL_WIDTH),
        kernel_offsets,
        kinds,
        _read_codes(arrow),
    )
    return plain_column(arrow, "record_id", pa.string()).tolist(), table


def _read_codes(arrow: pa.Table) -> np.ndarray | None:
    """Code vectors of another version are as good as none: they can be derived again."""
    import pyarrow as pa

    if _version(arrow, b"code_version") != CODE_VERSION:
        return None
    codes, ends = list_column(arrow, "code", pa.float32())
    if (np.diff(ends) != CODE_WIDTH).any():
        raise DataError(f"code vectors of another width than {CODE_WIDTH}")
    return codes.reshape(-1, CODE_WIDTH)


def _version(arrow: pa.Table, key: bytes) -> str:
    return (arrow.schema.metadata or {}).get(key, b"").decode("utf-8", "replace")
