"""Seconds of each call of an eager network on a device, and those in which its host dispatches it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import NamedTuple

import numpy as np

from cdmpp.devices import Device
from cdmpp.network.compose import bound_of
from cdmpp.network.eager.read import EagerNetwork
from cdmpp.network.graph import Call
from cdmpp.network.prediction import KernelPrediction
from cdmpp.network.runtime import PricedNetwork
from cdmpp.operators.operator import PRODUCTS, EagerOperator
from cdmpp.predict.flags import STAND_IN
from cdmpp.predict.predictor import Predictor

KERNEL_S = 3e-6
"""So long after another ends a kernel that does nothing has ended; a library takes as long to launch one more."""
STAND_IN_FACTOR = 2.0
"""Intervals of a call that stands for an operator that nobody measured are so many times as wide, either way.

No measurement says it: it is the range of what is assumed, that a library runs such an operator half to twice as fast
as the operators that compute or move as much.
"""
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


def prices_of(predictor: Predictor, operators: Sequence[EagerOperator], device: Device) -> list[Price]:
    """Price each operator as a call in a network, in one batched prediction.

    Of each operator the host's dispatch is taken off, since in a network the host runs ahead. A call that is repeated,
    as those that were measured, finds its data in the caches of a GPU. In a network others ran in between: it takes no
    less than its part of the same call on more rows than a cache holds.
    """
    answer = predictor.predict(operators, device=device)
    share = predictor.device_share(operators, device)
    busy = np.maximum(answer.latency_s * share, _from_memory_s(predictor, operators, device)) + KERNEL_S
    if device.kind == "cpu":  # host and device are one: a call ends before the next is dispatched
        share, busy = np.ones_like(share), answer.latency_s
    scale, dispatch = busy / answer.latency_s, answer.latency_s * (1 - share)
    ends = {level: (low * scale, high * scale) for level, (low, high) in answer.intervals.items()}
    return [
        Price(
            float(busy[i]),
            float(dispatch[i]),
            {level: (float(low[i]), float(high[i])) for level, (low, high) in ends.items()},
            (*answer.flags[i],),
        )
        for i in range(len(operators))
    ]


def priced_by(predictor: Predictor, model: str, read: EagerNetwork, device: Device) -> PricedNetwork:
    """Price the calls of a network as ``predictor``, called ``model``, says; see ``prices_of``."""
    graph = read.graph
    prices = dict(zip(read.operators, prices_of(predictor, list(read.operators.values()), device), strict=True))
    counts = Counter((call.task_id, read.stand_in_for(place)) for place, call in enumerate(graph.calls))
    kernels = tuple(_kernel(read, prices, device, *one) for one in counts.items())
    return PricedNetwork(
        read=read,
        device=device,
        model=model,
        schedule=f"of PyTorch's libraries, {'training' if read.trains else 'inference'}",
        kernels=kernels,
        call_s=[prices[call.task_id].latency_s for call in graph.calls],
        dispatch_s=[dispatched_s(call, prices[call.task_id]) for call in graph.calls],
        by_datasheet=device.name not in predictor.trained_on,
        warnings=_warnings(read, kernels, device, predictor),
    )


def dispatched_s(call: Call, price: Price) -> float:
    """Return the seconds in which the host dispatches a call: no dispatch of its own where a library launches it."""
    return min(price.dispatch_s, KERNEL_S) if call.is_joined else price.dispatch_s


def as_stand_in(price: Price) -> Price:
    """Return the price of a call that stands for an operator that nobody measured."""
    wide = {level: (low / STAND_IN_FACTOR, high * STAND_IN_FACTOR) for level, (low, high) in price.intervals.items()}
    return price._replace(intervals=wide, flags=(*price.flags, STAND_IN))


def _kernel(
    read: EagerNetwork, prices: Mapping[str, Price], device: Device, of: tuple[str, str], count: int
) -> KernelPrediction:
    """Sum up the calls of one operator that stand for the same one, or for none."""
    key, stands_for = of
    operator, price = read.operators[key], as_stand_in(prices[key]) if stands_for else prices[key]
    return KernelPrediction(
        task_id=key,
        name=f"{operator}",
        op_class=operator.kind.op_class,
        count=count,
        latency_s=price.latency_s,
        cold_s=0.0,
        intervals=price.intervals,
        flops=operator.flops,
        io_bytes=operator.io_bytes,
        bound=bound_of(operator.flops, operator.io_bytes, device),
        candidates=1,
        flags=price.flags,
        stands_for=stands_for,
    )


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
        seconds = predictor.predict(large, device=sheet).latency_s * predictor.device_share(large, sheet)
        found[places] = seconds / times
    return found


def _warnings(
    read: EagerNetwork, kernels: Sequence[KernelPrediction], device: Device, predictor: Predictor
) -> tuple[str, ...]:
    found = []
    if device.name not in predictor.trained_on:
        found.append(f"the model never saw {device.name}, so it goes by its datasheet alone")
    if read.trains and read.step is None:
        found.append("forward and backward pass only: the step of the optimizer is left out")
    total = sum(kernel.total_s for kernel in kernels) or 1.0
    by_operator: dict[str, float] = {}
    for kernel in kernels:
        if kernel.stands_for:
            by_operator[kernel.stands_for] = by_operator.get(kernel.stands_for, 0.0) + kernel.total_s / total
    for name, share in by_operator.items():
        as_what = ", ".join(kernel.name for kernel in kernels if kernel.stands_for == name)
        if share > 0.01:
            found.append(f"{name}, {share:.0%} of the time, is answered as {shorten(as_what, 120, placeholder=' ...')}")
    return tuple(found)
