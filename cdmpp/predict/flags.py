"""Flags: what a reader of one prediction must know before trusting it."""

from __future__ import annotations

import numpy as np

from cdmpp.ast.leaf_features import LEAF_NAMES, N_LOADS
from cdmpp.ast.table import TARGET_KINDS, AstTable
from cdmpp.devices import Device

NO_MACHINE_CODE = "no machine code"
FASTER_THAN_PEAK = "faster than peak"
NOT_SCHEDULED = "not scheduled"
UNLIKE_TRAINING = "unlike training"
FLAGS = {
    NO_MACHINE_CODE: "the model reads machine code and has none of these; without it errors are several times as large",
    FASTER_THAN_PEAK: "multiply-adds in less time than the datasheet allows; the answer cannot be right",
    NOT_SCHEDULED: "no parallel, vectorised or unrolled loop; models learned from scheduled programs only",
    UNLIKE_TRAINING: "farther from the training programs than 99 % of those of validation; expect larger errors",
}
"""Flag -> what it means, in the order in which they are shown."""
_CPU_BOOST = 1.1  # by how much a CPU's clock may exceed that of its description


def flag_programs(asts: AstTable, device: Device, latency_s: np.ndarray, wants_code: bool) -> dict[str, np.ndarray]:
    """Flag -> (n,) bool, those that can be told from programs and answers. ``wants_code``: the model reads it."""
    on_cpu = asts.target_kinds == TARGET_KINDS.index("cpu")
    without = np.ones(len(asts), bool) if asts.codes is None else np.isnan(asts.codes[:, 0])
    return {
        NO_MACHINE_CODE: on_cpu & without & wants_code,
        FASTER_THAN_PEAK: latency_s < least_seconds(asts, device),
        NOT_SCHEDULED: on_cpu & unscheduled(asts),
    }


def least_seconds(asts: AstTable, device: Device) -> np.ndarray:
    """(n,) seconds that the multiply-adds of each program need at the device's published peak; 0 where none is known.

    Multiply-adds alone: a compiler may fold other operations. A loop nest uses no more cores than it has parallel
    iterations or blocks.
    """
    peak, cores = device.spec["fp32_tflops"], device.spec["core_count"]
    if not peak or not cores:
        return np.zeros(len(asts))
    narrow_rates = (device.spec["fp16_tflops"], device.spec["fp16_matrix_tflops"])
    narrow_peak = max((rate for rate in narrow_rates if rate), default=np.inf)
    share = np.maximum(1.0, _leaf(asts, "parallel_extent")) if device.kind == "cpu" else _leaf(asts, "blocks")
    narrow = np.zeros(len(asts.leaf_features), bool)
    for name in ("store", *(f"load{i}" for i in range(N_LOADS))):
        width = _leaf(asts, f"{name}_element_bytes")
        narrow |= (width > 0.5) & (width < 3.5)
    flops_per_s = np.where(narrow, max(narrow_peak, peak), peak) * 1e12 * (_CPU_BOOST if device.kind == "cpu" else 1.0)
    used = np.minimum(1.0, np.maximum(1.0, share) / cores)
    return _total(asts, 2 * _leaf(asts, "ops_fma") / (flops_per_s * used))


def unscheduled(asts: AstTable) -> np.ndarray:
    """(n,) bool: no loop is parallel, vectorised or unrolled, and none may be unrolled."""
    marks = [_leaf(asts, name) for name in ("parallel_extent", "vector_lanes", "unrolled_trips")]
    marks += [1 + _leaf(asts, name) for name in ("unroll_limit", "explicit_unroll_flag")]
    return _total(asts, np.max(marks, axis=0) > 1.5) == 0


def _leaf(asts: AstTable, name: str) -> np.ndarray:
    """(sum of leaves,) the quantity in its unit."""
    column = np.asarray(asts.leaf_features[:, LEAF_NAMES.index(name)], np.float64)
    return np.exp2(np.minimum(column, 1000.0)) - 1


def _total(asts: AstTable, values: np.ndarray) -> np.ndarray:
    """(n,) sums over the leaves of each program."""
    return np.add.reduceat(values.astype(np.float64), asts.leaf_offsets[:-1]) if len(asts) else np.zeros(0)
