"""Flags: what a reader of one prediction must know before trusting it."""

from __future__ import annotations

import numpy as np

from cdmpp.ast.leaf_features import LEAF_NAMES, N_LOADS
from cdmpp.ast.quantities import leaf_quantity, leaf_total, unscheduled
from cdmpp.ast.table import TARGET_KINDS, AstTable
from cdmpp.devices import Device
from cdmpp.machine_code.cpu.code_features import CODE_NAMES

NO_MACHINE_CODE = "no machine code"
COUNT_UNKNOWN = "count unknown"
FASTER_THAN_PEAK = "faster than peak"
NOT_SCHEDULED = "not scheduled"
NOT_MEASURED = "never measured"
MEASURED_ELSEWHERE = "measured elsewhere"
IN_CACHE = "in cache"
UNLIKE_TRAINING = "unlike training"
STAND_IN = "stand-in"
FUSED_ATTENTION = "fused attention"
FLAGS = {
    NO_MACHINE_CODE: "the model reads machine code and has none of these; without it errors are several times as large",
    COUNT_UNKNOWN: "data decide how often parts of its machine code run; taken to go either way as often",
    FASTER_THAN_PEAK: "multiply-adds in less time than the datasheet allows; the answer cannot be right",
    NOT_SCHEDULED: "no parallel, vectorised or unrolled loop; the model learned none such on this device",
    NOT_MEASURED: "the training has no such operator, or none of this type; answered as the nearest ones that it has",
    MEASURED_ELSEWHERE: "the training has such operators of other devices alone; answered as on one nobody measured",
    IN_CACHE: "its bytes fit in the second-level cache, and those of no such training call did; answered by its ports",
    STAND_IN: "nobody measured its operator; answered as those that compute or move as much, within a factor of two",
    FUSED_ATTENTION: "nobody measured it here; answered from published speeds or from its products, intervals are wide",
    UNLIKE_TRAINING: "farther from the training programs than 99 % of those of validation; expect larger errors",
}
"""Flag -> what it means, in the order in which they are shown."""
UNSCHEDULED = "unscheduled_programs"
"""Key in a model's card: device -> number of programs without a schedule that it learned from."""
OF_STEPS = "training_step_programs"
"""Key in a model's card: device -> number of programs of training steps that it learned from."""
_ENOUGH = 100  # of these
_UNKNOWN = [CODE_NAMES.index(name) for name in ("unknown_loops", "machine_unmatched_loops")]
_WIDTHS = [LEAF_NAMES.index(f"{name}_element_bytes") for name in ("store", *(f"load{i}" for i in range(N_LOADS)))]
_HALF_BYTE, _NEARLY_FOUR = np.log2(np.array([1.5, 4.5], np.float32))  # features are log2(1 + x)
_CPU_BOOST = 1.1  # by how much a CPU's clock may exceed that of its description


def flag_programs(
    asts: AstTable, device: Device, latency_s: np.ndarray, wants_code: bool, learned_unscheduled: int = 0
) -> dict[str, np.ndarray]:
    """Return (n,) bool by flag, for those flags that follow from programs and answers.

    ``wants_code``: the model reads the machine code of such a device. ``learned_unscheduled``: programs of this
    device without a schedule that it learned from.
    """
    on_cpu = asts.target_kinds == TARGET_KINDS.index("cpu")
    without = np.ones(len(asts), bool) if asts.codes is None else np.isnan(asts.codes[:, 0])
    return {
        NO_MACHINE_CODE: without & wants_code,
        COUNT_UNKNOWN: on_cpu & wants_code & count_unknown(asts),
        FASTER_THAN_PEAK: latency_s < least_seconds(asts, device),
        NOT_SCHEDULED: on_cpu & unscheduled(asts) & (learned_unscheduled < _ENOUGH),
    }


def count_unknown(asts: AstTable) -> np.ndarray:
    """Return (n,) True for CPU programs in which data decide how often parts run, by their code vectors."""
    if asts.codes is None:
        return np.zeros(len(asts), bool)
    branches = asts.codes[:, _UNKNOWN]  # log2(1 + n)
    return np.asarray((branches > 0.5).any(1))


def least_seconds(asts: AstTable, device: Device) -> np.ndarray:
    """Return (n,) seconds of the multiply-adds at the device's published peak; 0 where none is known.

    Only multiply-adds count: a compiler may fold other operations. A loop nest uses no more cores than it has parallel
    iterations or blocks.
    """
    peak, cores = device.spec["fp32_tflops"], device.spec["core_count"]
    if not peak or not cores:
        return np.zeros(len(asts))
    narrow_rates = (device.spec["fp16_tflops"], device.spec["fp16_matrix_tflops"])
    narrow_peak = max((rate for rate in narrow_rates if rate), default=np.inf)
    share = leaf_quantity(asts, "parallel_extent" if device.kind == "cpu" else "blocks")
    widths = asts.leaf_features[:, _WIDTHS]
    narrow = ((widths > _HALF_BYTE) & (widths < _NEARLY_FOUR)).any(1)
    flops_per_s = np.where(narrow, max(narrow_peak, peak), peak) * 1e12 * (_CPU_BOOST if device.kind == "cpu" else 1.0)
    used = np.minimum(1.0, np.maximum(1.0, share) / cores)
    return leaf_total(asts, 2 * leaf_quantity(asts, "ops_fma") / (flops_per_s * used))
