"""Pooled programs: one row of fixed width each, of compact AST and datasheet. Trees and the ranker read these."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from cdmpp.ast.layout import KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.ast.pooling import compress, pool_asts
from cdmpp.ast.table import AstTable
from cdmpp.data.batching import spec_array
from cdmpp.devices import Device
from cdmpp.model.analytic import N_BOUNDS, bound_times, kernel_parts, kernel_seconds

POOLED_WIDTH = 2 * LEAF_WIDTH + 3 * (KERNEL_WIDTH + N_BOUNDS) + 4
"""Numbers of a pooled program."""


def pooled(asts: AstTable, sheets: Sequence[Device]) -> np.ndarray:
    """Pool leaves and kernels, and kernel times by the analytic formula, nothing fitted: (n, POOLED_WIDTH) float32.

    ``sheets``: the device of each program, (n,).
    """
    owner = np.repeat(np.arange(len(asts)), np.diff(asts.kernel_offsets))
    specs = _each(sheets, spec_array)[owner]
    with torch.no_grad():
        features, kinds = torch.tensor(asts.kernel_features)[:, None], torch.from_numpy(asts.target_kinds[owner])
        times = bound_times(kernel_parts(features, torch.from_numpy(specs), kinds.long()))
        terms, seconds = (x[:, 0].numpy().astype(np.float64) for x in (times, kernel_seconds(times)))
    total = np.add.reduceat(seconds, asts.kernel_offsets[:-1])
    rows = pool_asts(asts, compress(terms * 1e9), seconds)
    return np.concatenate([rows, compress(total[:, None] * 1e9)], axis=1).astype(np.float32)


def with_devices(asts: AstTable, sheets: Sequence[Device]) -> np.ndarray:
    """Join ``pooled`` and the device vector of each program, (n, POOLED_WIDTH + VECTOR_WIDTH) float32."""
    return np.concatenate([pooled(asts, sheets), _each(sheets, Device.vector)], axis=1).astype(np.float32)


def _each(sheets: Sequence[Device], of: Callable[[Device], np.ndarray]) -> np.ndarray:
    """(n, width) of a few devices that occur many times."""
    rows = {name: of(sheet) for name, sheet in {sheet.name: sheet for sheet in sheets}.items()}
    return np.stack([rows[sheet.name] for sheet in sheets])
