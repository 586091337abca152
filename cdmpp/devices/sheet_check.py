"""Checks of a device's numbers against each other and against those of its kind: a unit mistaken is off by 1000."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cdmpp.devices.sheet import Quantity, out_of_range
from cdmpp.errors import CdmppError

KIND_TARGETS: Mapping[str, tuple[str, ...]] = {
    "cpu": ("llvm", "c"),
    "gpu": ("cuda", "nvptx", "rocm", "metal", "vulkan", "opencl", "webgpu"),
    "accelerator": ("ext_dev", "hexagon", "opencl", "c"),
}
"""Kind of device -> the kinds of TVM's target that make code for it."""
PEAK_TOLERANCE = 0.1
"""Share by which the peak may differ from clock x cores x lanes x 2: makers round."""
RATIOS: Mapping[tuple[str, str], tuple[float, float, str]] = {
    ("bandwidth_gbps", "fp32_tflops"): (1.0, 1e4, "GB/s of memory by TFLOP/s: 9 to 152 on the devices described"),
    ("fp16_tflops", "fp32_tflops"): (1 / 128, 8.0, "half by full precision: 1 to 4 on the devices described"),
    ("fp16_matrix_tflops", "fp32_tflops"): (
        1.0,
        256.0,
        "matrix units by vector lanes: 4 to 30 on the devices described",
    ),
    ("fp32_matrix_tflops", "fp32_tflops"): (0.5, 64.0, "matrix units by vector lanes: 1 to 2 on the devices described"),
    ("board_power_w", "fp32_tflops"): (0.2, 500.0, "W by TFLOP/s: 2.4 to 34 on the devices described"),
}
"""Pairs of numbers -> the lowest and highest quotient that a device can have, and what it is."""


def check_sheet(path: Path, kind: str, target: Mapping[str, Any], numbers: Mapping[str, Quantity]) -> None:
    """Raise ``CdmppError`` for the first field that no device of ``kind`` has, or that contradicts another."""
    if target["kind"] not in KIND_TARGETS[kind]:
        allowed = ", ".join(KIND_TARGETS[kind])
        raise CdmppError(
            f"{path}: field target.kind is {target['kind']!r} and kind is {kind}: expected one of {allowed}"
        )
    for fault in (*out_of_range("device", kind, numbers), *_contradictions(kind, numbers)):
        raise CdmppError(f"{path}: spec.{fault}. Check the units")
    told, warp_size = target.get("thread_warp_size"), numbers["warp_size"].value
    if None not in (warp_size, told) and told != warp_size:
        raise CdmppError(f"{path}: field target.thread_warp_size is {told} and spec.warp_size is {warp_size:g}")


def check_range(kind: str, name: str, value: float) -> None:
    """Raise ``CdmppError`` for one number that no device of ``kind`` has."""
    for fault in out_of_range("device", kind, {name: Quantity(value, value, "", "")}):
        raise CdmppError(fault)


def peak_tflops(kind: str, spec: Mapping[str, float | None]) -> float:
    """Return clock x cores x lanes x 2 in TFLOP/s; 0 where a sheet lacks one of them."""
    factors, scale, _ = _factors(kind)
    return scale * math.prod(spec[name] or 0 for name in factors)


def _factors(kind: str) -> tuple[list[str], float, str]:
    """Names of the factors of the peak, what else it is multiplied by, and that in words."""
    factors = ["clock_mhz", "core_count", "fma_units_per_core", *(["simd_bits"] if kind == "cpu" else [])]
    # MHz x FLOP = 1e-6 TFLOP/s, two FLOP of a fused multiply-add; the units of a CPU are vectors of 32-bit floats
    return (factors, 2e-6 / 32, " / 32 x 2") if kind == "cpu" else (factors, 2e-6, " x 2")


def _contradictions(kind: str, numbers: Mapping[str, Quantity]) -> Iterator[str]:
    factors, scale, formula = _factors(kind)
    low = scale * math.prod(numbers[name].low or 0 for name in factors)
    high = scale * math.prod(numbers[name].high or 0 for name in factors)
    peak, peak_low, peak_high = (getattr(numbers["fp32_tflops"], end) for end in ("value", "low", "high"))
    if low and peak and (peak_high < low * (1 - PEAK_TOLERANCE) or peak_low > high * (1 + PEAK_TOLERANCE)):
        yield (
            f"fp32_tflops is {peak:g}, and {' x '.join(factors)}{formula} is {(low * high) ** 0.5:.4g}: "
            "one of them is wrong"
        )
    for (over, under), (least, most, meaning) in RATIOS.items():
        a, b = numbers[over].value, numbers[under].value
        if a and b and not least <= a / b <= most:
            yield f"{over} is {a:g} and {under} is {b:g}: their quotient is {a / b:.3g} ({meaning})"
