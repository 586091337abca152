"""Seconds of single calls in a network, of operators that a model has learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cdmpp import devices
from cdmpp.devices import Device
from cdmpp.operators.operator import PRODUCTS, EagerOperator
from cdmpp.predict.flags import IN_CACHE, STAND_IN
from cdmpp.predict.predictor import Predictor

KERNEL_S = 3e-6
"""So long after another ends a kernel that does nothing has ended; a library takes as long to launch one more."""
STAND_IN_FACTOR = 2.0
"""Intervals of a call that stands for an operator that nobody measured are so many times as wide, either way.

No measurement says it: it is the range of what is assumed, that a library runs such an operator half to twice as fast
as the operators that compute or move as much.
"""
HALVES_ON = ("h200", "h100")
"""GPUs on which products of halves were measured; those of all other devices were of float32."""
_MOST_MEASURED, _MOST_OF_PEAK = 0.88, 0.945
"""Most of the peak that products of halves reached on ``HALVES_ON``, and on any GPU: 295 of 312 TFLOP/s on an A100 that
multiplies zeros (H. He, "Strangely, matrix multiplications on GPUs run faster when given predictable data", 2024)."""
_WIDE_LOAD = 8
"""A thread loads so many halves at once, where rows are in whole multiples of them."""
_CACHED_BYTES, _FAR = 1 << 20, 8
"""Calls that move more than the first, and less than so many times a second-level cache, may find their data there."""


class Price(NamedTuple):
    """One call of an operator costs this in a network."""

    latency_s: float
    """Seconds on the device."""
    dispatch_s: float
    """Seconds in which the host dispatches it."""
    intervals: Mapping[float, tuple[float, float]]
    """Level -> ends of the interval of ``latency_s``."""
    flags: tuple[str, ...]


def learned_prices(predictor: Predictor, operators: Sequence[EagerOperator], device: Device) -> list[Price]:
    """Price each operator as a call in a network, in one batched prediction.

    Of each operator the host's dispatch is taken off, since in a network the host runs ahead. A call that is repeated,
    as those that were measured, finds its data in the caches of a GPU. In a network others ran in between: it takes no
    less than its part of the same call on more rows than a cache holds. Products of halves, which were measured on
    ``HALVES_ON`` alone, come no nearer to the peaks of another GPU than to those of these. A board that is known to
    have run linear products in several states of power is taken to be midway between them, with an interval from one to
    the other.
    """
    answer = predictor.predict(operators, device=device)
    share = predictor.device_share(operators, device)
    alone_s, far_s = answer.latency_s * share, _from_memory_s(predictor, operators, device)
    busy = np.maximum.reduce([alone_s, far_s, _of_halves_s(predictor, operators, device)]) + KERNEL_S
    if device.kind == "cpu":  # host and device are one: a call ends before the next is dispatched
        share, busy = np.ones_like(share), answer.latency_s
    scale, dispatch = busy / answer.latency_s, answer.latency_s * (1 - share)
    state = predictor.power_states.get(device.name, 1.0)
    fastest = np.array([state if one.kind.family == "linear" else 1.0 for one in operators])
    ends = {level: (low * scale * fastest, high * scale) for level, (low, high) in answer.intervals.items()}
    busy = busy * np.sqrt(fastest)
    return [
        Price(
            float(busy[i]),
            float(dispatch[i]),
            {level: (float(low[i]), float(high[i])) for level, (low, high) in ends.items()},
            tuple(flag for flag in answer.flags[i] if flag != IN_CACHE or far_s[i] <= alone_s[i]),
        )
        for i in range(len(operators))
    ]


def times_as_long(price: Price, times: float) -> Price:
    """Return the price of a call that takes a number of times as long on the device."""
    ends = {level: (low * times, high * times) for level, (low, high) in price.intervals.items()}
    return price._replace(latency_s=price.latency_s * times, intervals=ends)


def as_stand_in(price: Price) -> Price:
    """Return the price of a call that stands for an operator that nobody measured."""
    wide = {level: (low / STAND_IN_FACTOR, high * STAND_IN_FACTOR) for level, (low, high) in price.intervals.items()}
    return price._replace(intervals=wide, flags=(*price.flags, STAND_IN))


def _from_memory_s(predictor: Predictor, operators: Sequence[EagerOperator], sheet: Device) -> np.ndarray:
    """(n,) seconds of calls whose data no cache of a GPU holds; 0 for products, which hide it, and for small calls."""
    found, cache_bytes = np.zeros(len(operators)), 1024 * (sheet.spec["l2_kb"] or 0.0)
    places = [
        place
        for place, one in enumerate(operators)
        if one.kind.family not in PRODUCTS and _CACHED_BYTES < one.io_bytes < _FAR * cache_bytes
    ]
    if places and sheet.kind != "cpu":
        large, times = zip(*(operators[place].on_more_rows(_FAR * cache_bytes) for place in places), strict=True)
        found[places] = predictor.device_s(large, sheet) / times
    return found


def _of_halves_s(predictor: Predictor, operators: Sequence[EagerOperator], sheet: Device) -> np.ndarray:
    """(n,) seconds that products of halves take at least on a GPU on which none was measured; 0 for all others.

    There the model goes as far as the datasheet's peak, whatever the sizes. So they come as near to the most that
    products reach as on the board of ``HALVES_ON`` that comes nearest to its own, with as many rows for each core.
    Sizes that no wide load fits, for which libraries have other kernels, are taken to the next that one does.
    """
    found = np.zeros(len(operators))
    known = [devices.get(name) for name in HALVES_ON if name in predictor.trained_on]
    places = [
        place
        for place, one in enumerate(operators)
        if one.kind.family in ("linear", "bmm") and one.dtype in ("float16", "bfloat16")
    ]
    if not places or not known or sheet.kind != "gpu" or sheet.name in HALVES_ON or _peak_tflops(sheet) is None:
        return found
    own, shares = [operators[place] for place in places], list[np.ndarray]()
    for board in known:
        times = (board.spec["core_count"] or 1.0) / (sheet.spec["core_count"] or board.spec["core_count"] or 1.0)
        filled = [_filling(one, times) for one in own]
        shares.append(_roofline_s(filled, board) / predictor.device_s(filled, board))
    most = np.maximum.reduce(shares) / _MOST_MEASURED
    found[places] = _roofline_s(own, sheet) / np.minimum(_MOST_OF_PEAK * most, 1.0)
    return found


def _filling(one: EagerOperator, times: float) -> EagerOperator:
    """Return a product with ``times`` as many rows, or examples of a batched one, and sizes that wide loads fit."""
    sizes = {name: -(-one[name] // _WIDE_LOAD) * _WIDE_LOAD for name in ("rows", "inner", "cols")}
    name = "batch" if one.kind.family == "bmm" else "rows"
    grown = max(1, round(times * {**one.sizes, **sizes}[name]))
    return EagerOperator(one.name, {**one.sizes, **sizes, name: grown}, one.dtype)


def _peak_tflops(sheet: Device) -> float | None:
    return sheet.spec["fp16_matrix_tflops"]


def _roofline_s(operators: Sequence[EagerOperator], sheet: Device) -> np.ndarray:
    """(n,) seconds of products of halves at the datasheet's rates: those of matrix units, and of memory."""
    flops, moved = (np.array([getattr(one, name) for one in operators]) for name in ("flops", "io_bytes"))
    peak, bandwidth = _peak_tflops(sheet) or np.inf, sheet.spec["bandwidth_gbps"] or np.inf
    return np.maximum(flops / (1e12 * peak), moved / (1e9 * bandwidth))
