"""Pooled programs: one row of fixed width each, of compact AST and datasheet. Trees and the ranker read these."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import numpy as np
import torch

from cdmpp.ast.layout import KERNEL_WIDTH, LEAF_NAMES, LEAF_WIDTH
from cdmpp.ast.table import AstTable
from cdmpp.data.batching import spec_array
from cdmpp.devices import Device
from cdmpp.model.analytic import BOUND_OF_PART, N_BOUNDS
from cdmpp.model.native import native_network
from cdmpp.model.native_inputs import device_numbers, layout

POOLED_WIDTH = 2 * LEAF_WIDTH + 3 * (KERNEL_WIDTH + N_BOUNDS) + 4
"""Numbers of a pooled program."""
_WORK = np.array([i for i, name in enumerate(LEAF_NAMES) if name.startswith("ops_")], np.int32)


class _Tables(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "leaves", "leaf_offsets", "kernels", "kernel_offsets", "kinds", "devices", "numbers", "work")),
        *((name, ctypes.c_int64) for name in ("leaf_width", "kernel_width", "n_work")),
    )  # fmt: skip


def pooled(asts: AstTable, sheets: Sequence[Device]) -> np.ndarray:
    """Pool leaves and kernels, and kernel times by the analytic formula, nothing fitted: (n, POOLED_WIDTH) float32.

    ``sheets``: the device of each program, (n,). A row has logarithms of the leaves' sums, the leaf with most
    operations, the two kernels that take longest with the times that bound them, logarithms of the kernels' sums,
    counts of leaves and kernels, the kind of target, and all time.
    """
    assert asts.leaf_features.shape[1:] == (LEAF_WIDTH,) and asts.kernel_features.shape[1:] == (KERNEL_WIDTH,)
    places, known = _distinct(sheets)
    specs = np.stack([spec_array(sheet) for sheet in known])
    columns = [
        np.ascontiguousarray(column, dtype)
        for column, dtype in (
            (asts.leaf_features, np.float32), (asts.leaf_offsets, np.int64), (asts.kernel_features, np.float32),
            (asts.kernel_offsets, np.int64), (asts.target_kinds, np.uint8), (places, np.int64),
            (_numbers(specs.tobytes(), len(specs)), np.float32), (_WORK, np.int32),
        )
    ]  # fmt: skip
    tables = _Tables(*(column.ctypes.data for column in columns), LEAF_WIDTH, KERNEL_WIDTH, len(_WORK))
    rows, bound = np.empty((len(asts), POOLED_WIDTH), np.float32), np.array(BOUND_OF_PART, np.int32)
    native_network().network_pooled(
        ctypes.byref(tables), ctypes.byref(layout()), bound.ctypes.data, len(rows), POOLED_WIDTH, rows.ctypes.data
    )
    return rows


def with_devices(asts: AstTable, sheets: Sequence[Device]) -> np.ndarray:
    """Join ``pooled`` and the device vector of each program, (n, POOLED_WIDTH + VECTOR_WIDTH) float32."""
    places, known = _distinct(sheets)
    return np.concatenate([pooled(asts, sheets), np.stack([sheet.vector() for sheet in known])[places]], axis=1)


@functools.lru_cache(64)
def _numbers(specs: bytes, n: int) -> np.ndarray:
    """(n, 2, N) of datasheets, by the bytes of their (n, len(SPEC_FIELDS)) numbers."""
    return device_numbers(torch.from_numpy(np.frombuffer(bytearray(specs), np.float32).reshape(n, -1))).numpy()


def _distinct(sheets: Sequence[Device]) -> tuple[np.ndarray, list[Device]]:
    """Return places (n,) among a few devices that occur many times, and these."""
    known = {sheet.name: sheet for sheet in sheets}
    place = {name: i for i, name in enumerate(known)}
    return np.array([place[sheet.name] for sheet in sheets], np.int64), list(known.values())
