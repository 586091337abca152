"""Pooled programs, readable: what ``cdmpp.model.pooled`` computes by the compiled library."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from cdmpp.ast.layout import LEAF_NAMES
from cdmpp.ast.pooling import compress, expand
from cdmpp.ast.table import AstTable
from cdmpp.data.batching import spec_array
from cdmpp.devices import Device
from cdmpp.model.analytic import bound_times, kernel_parts, kernel_seconds

_OPS = [i for i, name in enumerate(LEAF_NAMES) if name.startswith("ops_")]


def pooled(asts: AstTable, sheets: Sequence[Device]) -> np.ndarray:
    """Pool leaves and kernels, and kernel times by the analytic formula: (n, POOLED_WIDTH) float32."""
    owner = np.repeat(np.arange(len(asts)), np.diff(asts.kernel_offsets))
    specs = np.stack([spec_array(sheet) for sheet in sheets])[owner]
    features, kinds = torch.tensor(asts.kernel_features)[:, None], torch.from_numpy(asts.target_kinds[owner])
    times = bound_times(kernel_parts(features, torch.from_numpy(specs), kinds.long()))
    terms, seconds = (x[:, 0].numpy().astype(np.float64) for x in (times, kernel_seconds(times)))
    total = np.add.reduceat(seconds, asts.kernel_offsets[:-1])
    rows = _pool(asts, compress(terms * 1e9), seconds)
    return np.concatenate([rows, compress(total[:, None] * 1e9)], axis=1).astype(np.float32)


def _pool(table: AstTable, kernel_columns: np.ndarray, kernel_seconds: np.ndarray) -> np.ndarray:
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


def _log_sum(rows: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """(n, width) of ragged groups, none empty: a program has a leaf and a kernel."""
    return compress(np.add.reduceat(expand(rows.astype(np.float64)), offsets[:-1], axis=0))


def _top_two(score: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n,) row with the largest and (n,) with the second largest score of each group (the largest where alone)."""
    order = np.lexsort((-score, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))))
    return order[offsets[:-1]], order[np.minimum(offsets[:-1] + 1, offsets[1:] - 1)]
