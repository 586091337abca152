"""Fixed-width vectors from ragged rows: what tree models read of a program."""

from __future__ import annotations

import numpy as np

from cdmpp.ast.layout import LEAF_NAMES
from cdmpp.ast.table import AstTable

_OPS = [i for i, name in enumerate(LEAF_NAMES) if name.startswith("ops_")]


def pool_per_store(rows: np.ndarray) -> np.ndarray:
    """Pool TVM's per-store rows, (4 * width + 1,): sum, maximum, store with most work (columns 0-6), log sum, count."""
    if not len(rows):
        return np.zeros(4 * rows.shape[1] + 1)
    busiest = rows[expand(rows[:, :7]).sum(axis=1).argmax()]
    return np.concatenate([rows.sum(0), rows.max(0), busiest, compress(expand(rows).sum(0)), [len(rows)]])


def pool_asts(table: AstTable, kernel_columns: np.ndarray, kernel_seconds: np.ndarray) -> np.ndarray:
    """Return pooled leaves, pooled kernels (with further ``kernel_columns``) and their counts: (n, columns) float32."""
    leaves, kernels = table.leaf_features, np.concatenate([table.kernel_features, kernel_columns], axis=1)
    leaf_work = expand(leaves[:, _OPS].astype(np.float64)).sum(axis=1)
    first, second = _top_two(kernel_seconds, table.kernel_offsets)
    several = (np.diff(table.kernel_offsets) > 1)[:, None]
    counts = [np.diff(table.leaf_offsets), np.diff(table.kernel_offsets), table.target_kinds]
    columns = [
        _log_sum(leaves, table.leaf_offsets),
        leaves[_top_two(leaf_work, table.leaf_offsets)[0]],
        kernels[first],
        np.where(several, kernels[second], 0.0),
        # Of a single kernel these would only repeat it.
        np.where(several, _log_sum(kernels, table.kernel_offsets), 0.0),
        np.stack(counts, axis=1),
    ]
    return np.concatenate(columns, axis=1).astype(np.float32)


def expand(values: np.ndarray) -> np.ndarray:
    """Undo the signed log2(1 + |x|) of feature vectors."""
    return np.sign(values) * (np.exp2(np.minimum(np.abs(values), 100.0)) - 1.0)


def compress(values: np.ndarray) -> np.ndarray:
    """Take the signed log2(1 + |x|)."""
    return np.sign(values) * np.log2(1.0 + np.abs(values))


def _log_sum(rows: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """(n, width) of ragged groups, none empty: a program has a leaf and a kernel."""
    return compress(np.add.reduceat(expand(rows.astype(np.float64)), offsets[:-1], axis=0))


def _top_two(score: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n,) row with the largest and (n,) with the second largest score of each group (the largest where alone)."""
    order = np.lexsort((-score, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))))
    return order[offsets[:-1]], order[np.minimum(offsets[:-1] + 1, offsets[1:] - 1)]
