"""Fixed-width vectors from ragged rows: what tree models read of a program."""

from __future__ import annotations

import numpy as np


def pool_per_store(rows: np.ndarray) -> np.ndarray:
    """Pool TVM's per-store rows, (4 * width + 1,): sum, maximum, store with most work (columns 0-6), log sum, count."""
    if not len(rows):
        return np.zeros(4 * rows.shape[1] + 1)
    busiest = rows[expand(rows[:, :7]).sum(axis=1).argmax()]
    return np.concatenate([rows.sum(0), rows.max(0), busiest, compress(expand(rows).sum(0)), [len(rows)]])


def expand(values: np.ndarray) -> np.ndarray:
    """Undo the signed log2(1 + |x|) of feature vectors."""
    return np.sign(values) * (np.exp2(np.minimum(np.abs(values), 100.0)) - 1.0)


def compress(values: np.ndarray) -> np.ndarray:
    """Take the signed log2(1 + |x|)."""
    return np.sign(values) * np.log2(1.0 + np.abs(values))
