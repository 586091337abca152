"""Choice of operators to time: every kind, of random sizes over orders of magnitude, within what the device can do.

The same seed gives the same operators in the same order, and more of them continue the list.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from cdmpp.devices import Device
from cdmpp.errors import DataError, UnsupportedProgramError
from cdmpp.operators.operator import FAMILIES, LEARNED, EagerOperator

_MORE = {
    **{"linear": 24, "bmm": 20, "conv2d": 32, "softmax": 5, "layer_norm": 5, "batch_norm": 3, "mean": 3},
    **{"embedding": 2, "max_pool2d": 2, "avg_pool2d": 1, "add": 2, "mul": 1, "relu": 2, "gelu": 1, "copy": 2},
}
"""Further turns of an operator in a round, after the one of every kind: networks spend their time in these."""
_TYPICAL = {"cpu": (0.1, 10.0), "gpu": (5.0, 200.0)}
"""TFLOP/s and GB/s that a silent datasheet is taken for: on the safe side."""
_MEMORY_GB = 4.0
"""Memory of a device whose datasheet is silent, in GB."""
_SHARE = 0.25
"""Share of the device's memory that one call may take."""
_STEPS = (1, 1, 8, 16, 64)
"""Sizes are multiples of one of these."""
_ROUND_SHARE = 0.5
"""Share of the operators whose sizes are all 4 to 7 times a power of two, as 768, 1280, 4096 or 56 are in networks."""
_TRIES = 2000
_DISPATCH_S, _DISPATCH_SHARE = 5e-6, 0.25
"""Smaller calls all take what dispatching one takes: only this share of those that are drawn is kept."""


@dataclass(frozen=True)
class CallLimits:
    """One call may take so much time and memory at most."""

    call_s: float
    """Seconds of a roofline at the peak of the datasheet: it takes longer."""
    call_bytes: float
    """Bytes of inputs and output."""
    flops_per_s: float
    bytes_per_s: float

    @staticmethod
    def of(device: Device, call_ms: float, call_mb: float | None) -> CallLimits:
        """Set the limits on a device; without ``call_mb`` a call may take a quarter of its memory."""
        tflops, gbps = _TYPICAL.get(device.kind, _TYPICAL["gpu"])
        memory_gb = device.spec["memory_gb"] or _MEMORY_GB
        call_bytes = 1e6 * call_mb if call_mb is not None else _SHARE * 1e9 * memory_gb
        of_cores = (device.spec["core_gbps"] or 0.0) * (device.spec["core_count"] or 1.0)
        peak, bandwidth = device.spec["fp32_tflops"] or tflops, device.spec["bandwidth_gbps"] or of_cores or gbps
        return CallLimits(1e-3 * call_ms, call_bytes, 1e12 * peak, 1e9 * bandwidth)

    def roofline_s(self, operator: EagerOperator) -> float:
        """Return the seconds at the peak of the datasheet."""
        return operator.flops / self.flops_per_s + operator.io_bytes / self.bytes_per_s

    def allow(self, operator: EagerOperator) -> bool:
        """Return True if a call is within the limits."""
        return operator.io_bytes <= self.call_bytes and self.roofline_s(operator) <= self.call_s


def operator_plan(limits: CallLimits, count: int, seed: int, dtype: str = "float32") -> list[EagerOperator]:
    """Draw ``count`` different operators; ``DataError`` where so many within the limits are not found."""
    return list(islice(_operators(limits, seed, dtype), count))


def calibration_plan(limits: CallLimits, calls: int, seed: int, dtype: str = "float32") -> list[EagerOperator]:
    """Take the first ``calls`` operators of each family of kernels in the list that ``operator_plan`` begins."""
    room = dict.fromkeys(FAMILIES, calls)
    chosen = []
    for operator in _operators(limits, seed, dtype):
        if room[operator.kind.family]:
            room[operator.kind.family] -= 1
            chosen.append(operator)
        if not any(room.values()):
            break
    return chosen


def _operators(limits: CallLimits, seed: int, dtype: str) -> Iterator[EagerOperator]:
    draw = _Draw(f"operators {seed}")
    seen: set[EagerOperator] = set()
    while True:
        more = [name for name, times in _MORE.items() for _ in range(times)]
        for name in (*draw.sample(list(LEARNED), len(LEARNED)), *draw.sample(more, len(more))):
            for _ in range(_TRIES):
                operator = _drawn(name, draw, dtype)
                kept = draw.random() < _DISPATCH_SHARE
                if operator is None or operator in seen or not limits.allow(operator):
                    continue
                if kept or limits.roofline_s(operator) > _DISPATCH_S:
                    break
            else:
                raise DataError(
                    f"{len(seen)} operators planned, and no further {name} found within {1e3 * limits.call_s:g} ms and "
                    f"{1e-6 * limits.call_bytes:g} MB a call: raise call_ms or call_mb, or ask for fewer operators"
                )
            seen.add(operator)
            yield operator


class _Draw(random.Random):
    """Draws the sizes of operators."""

    are_round = False
    """True if the sizes of the present operator are 4, 5, 6 or 7 times a power of two."""

    def extent(self, low: int, high: int) -> int:
        """Draw a whole number, its logarithm uniform."""
        value = math.exp(self.uniform(math.log(low), math.log(high)))
        step = 2 ** max(0, math.floor(math.log2(value)) - 2) if self.are_round else self.choice(_STEPS)
        return min(high, max(low, round(value / step) * step if value >= step else round(value)))


def _drawn(name: str, draw: _Draw, dtype: str) -> EagerOperator | None:
    """None where the sizes do not go together."""
    draw.are_round = draw.random() < _ROUND_SHARE
    try:
        return EagerOperator(name, _SIZES.get(name, _elementwise)(draw), dtype)
    except UnsupportedProgramError:
        return None


def _extents(**ranges: tuple[int, int]) -> Callable[[_Draw], dict[str, int]]:
    return lambda draw: {name: draw.extent(low, high) for name, (low, high) in ranges.items()}


def _linear(draw: _Draw) -> dict[str, int]:
    sizes = _extents(rows=(1, 16384), inner=(16, 16384), cols=(8, 65536))(draw)
    return {**sizes, "bias": int(draw.random() < 0.7)}


def _bmm(draw: _Draw) -> dict[str, int]:
    sizes = _extents(batch=(1, 512), rows=(1, 4096), inner=(8, 4096), cols=(8, 4096))(draw)
    return {**sizes, "transposed": draw.randrange(2)}


def _conv2d(draw: _Draw) -> dict[str, int]:
    """Two thirds are dense; of the others most have a group for each channel."""
    sizes = _extents(batch=(1, 64), in_channels=(1, 2048), out_channels=(8, 2048), in_size=(4, 256))(draw)
    kernel = draw.choice((1, 1, 3, 3, 3, 5, 7))
    sizes |= {"kernel": kernel, "stride": draw.choice((1, 1, 2)), "padding": draw.choice((kernel // 2,) * 3 + (0,))}
    kind = draw.random()
    if kind < 0.22:
        sizes |= {"out_channels": sizes["in_channels"], "groups": sizes["in_channels"]}
    elif kind < 0.33:
        groups = draw.choice((2, 4, 8, 32))
        channels = {name: groups * max(1, sizes[name] // groups) for name in ("in_channels", "out_channels")}
        sizes |= {**channels, "groups": groups}
    return sizes


def _pool(draw: _Draw) -> dict[str, int]:
    sizes = _extents(batch=(1, 64), channels=(1, 2048), in_size=(4, 256))(draw)
    kernel = draw.choice((2, 2, 3, 3, 5, 7))
    stride, padding = draw.choice((1, 2, kernel)), draw.choice((0, kernel // 2))
    return {**sizes, "kernel": kernel, "stride": stride, "padding": padding}


def _blocks(draw: _Draw) -> dict[str, int]:
    """Whole blocks of the operators that have such."""
    return {"rows": 64 * draw.extent(1, 4096), "cols": draw.extent(4, 8192)}


_elementwise = _extents(rows=(1, 65536), cols=(1, 65536))
_SIZES: dict[str, Callable[[_Draw], dict[str, Any]]] = {
    "linear": _linear,
    "bmm": _bmm,
    "conv2d": _conv2d,
    "softmax": _extents(rows=(1, 262144), cols=(2, 8192)),
    "layer_norm": _extents(rows=(1, 65536), cols=(16, 8192)),
    "embedding": _extents(rows=(1, 32768), cols=(16, 8192)),
    "mean": _extents(rows=(1, 65536), cols=(2, 65536)),
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    **dict.fromkeys(("permute", "transpose", "add_broadcast", "mul_broadcast"), _blocks),
}
"""Operator name -> function that draws its sizes; all others have rows and columns."""
