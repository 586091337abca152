"""Prices of fused attention: from speeds that were measured or published, else from the products that it makes.

A call takes as long as its operations at that speed on the cores that its blocks fill, or as its bytes at the speed of
a copy, whichever is longer. Speeds of another device go over by what both can multiply with the same instructions:
those of Ampere, which FlashAttention-2 and the memory-efficient kernels use on all later GPUs, cuDNN's by their peak.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from cdmpp.devices import Device
from cdmpp.network.eager.single_price import KERNEL_S, Price
from cdmpp.operators.attention import attended_pairs, backend_of_name, is_backward, value_size
from cdmpp.operators.attention_rules import capability_of
from cdmpp.operators.attention_speed import AttentionSpeeds, Speed, attention_speeds
from cdmpp.operators.operator import EagerOperator
from cdmpp.predict.flags import FUSED_ATTENTION

_AMPERE_FLOPS = 2048
"""Operations of halves a clock and core of ``mma`` instructions on the A100; on Hopper and Blackwell as many."""
_BLOCK_ROWS = 128
_WIDER = {0.8: (1.2, 1.4, 1.7, 2.0), 0.9: (1.3, 1.6, 2.1, 2.6)}
"""Level -> factor of an interval around what was measured on the device, published of it, published of another one, or
made of products: no errors are known that they could come from."""
_UNFUSED = {False: 1.10, True: 1.33}
"""Seconds over those of unfused calls on GPUs without tensor cores for the type, forward and backward (xformers pull
request 362, P100 in float32)."""
Single = Callable[[Sequence[EagerOperator], Device], list[Price]]
"""Prices operators that a model has learned."""


def attention_prices(
    operators: Sequence[EagerOperator], device: Device, single: Single, speeds: AttentionSpeeds | None = None
) -> list[Price]:
    """Price calls of fused attention on a device; ``single`` prices their products, and a copy of as many bytes."""
    speeds = speeds or attention_speeds()
    known = [speeds.of(operator, device.name) for operator in operators]
    pairs = list(zip(known, operators, strict=True))
    rates = [None if speed is None else _tflops(speed, operator, device) for speed, operator in pairs]
    parts = [_parts(operator, device, rate is None) for operator, rate in zip(operators, rates, strict=True)]
    priced = iter(single([one for part in parts for one in part], device))
    found = []
    for operator, speed, rate, part in zip(operators, known, rates, parts, strict=True):
        copied, *products = (next(priced) for _ in part)
        if rate is None:
            whole_s = sum(one.latency_s - KERNEL_S for one in products) * _of_products(operator, device)
        else:
            whole_s = operator.flops / (1e12 * rate * _fill(operator, device))
        bytes_s = copied.latency_s - KERNEL_S
        latency_s = max(whole_s, bytes_s) + KERNEL_S
        found.append(_price(latency_s, copied.dispatch_s, _wide(speed, rate, device)))
    return found


def _price(latency_s: float, dispatch_s: float, wide: int) -> Price:
    ends = {level: (latency_s / factors[wide], latency_s * factors[wide]) for level, factors in _WIDER.items()}
    return Price(latency_s, dispatch_s, ends, (FUSED_ATTENTION,) if wide else ())


def _wide(speed: Speed | None, rate: float | None, device: Device) -> int:
    if speed is None or rate is None:
        return 3
    return (0 if speed.is_measured else 1) if speed.device == device.name else 2


def _tflops(speed: Speed, operator: EagerOperator, device: Device) -> float | None:
    """Speed on ``device`` of what is known of another one; None where one of them has no such instructions."""
    if speed.device == device.name:
        return speed.tflops
    from cdmpp import devices

    backend = backend_of_name(operator.name)
    own, other = (_peak_tflops(one, backend, operator.element_bytes) for one in (device, devices.get(speed.device)))
    return None if own is None or other is None else speed.tflops * own / other


def _peak_tflops(device: Device, backend: str, element_bytes: int) -> float | None:
    """Return the peak of a kernel's instructions in halves, or as if float32 were made of three products of them."""
    capability, peak = capability_of(str(device.target.get("arch", ""))), device.spec["fp16_matrix_tflops"]
    if peak is None or capability < (7, 0) or (element_bytes > 2 and capability < (8, 0)):
        return None
    clock_mhz, cores = device.spec["clock_mhz"], device.spec["core_count"]
    if backend == "cudnn" or capability < (8, 0) or clock_mhz is None or cores is None:
        return peak
    return min(peak, 1e-6 * _AMPERE_FLOPS * cores * clock_mhz)


def _fill(operator: EagerOperator, device: Device) -> float:
    """Share of the cores that have a block, on average over waves; published calls fill all of them."""
    cores = device.spec["core_count"] or 1.0
    along = operator["cols"] if is_backward(operator.name) else operator["rows"]
    blocks = operator["batch"] * operator["heads"] * -(-along // _BLOCK_ROWS)
    if not is_backward(operator.name) and backend_of_name(operator.name) == "flash":
        blocks *= max(1, min(operator["cols"] // 256, int(cores // max(1, blocks))))  # keys are split for few queries
    return blocks / (cores * math.ceil(blocks / cores))


def _parts(operator: EagerOperator, device: Device, with_products: bool) -> list[EagerOperator]:
    """A copy of as many bytes, and the products with what lies between them where nothing fuses it."""
    copied = EagerOperator.flat("copy", max(1.0, operator.io_bytes / (2 * operator.element_bytes)), operator.dtype)
    if not with_products:
        return [copied]
    many, rows, cols = operator["batch"] * operator["heads"], operator["rows"], operator["cols"]
    inner, value, dtype = operator["inner"], value_size(operator.sizes), operator.dtype

    def product(a: int, b: int, c: int, transposed: int = 0) -> EagerOperator:
        return EagerOperator("bmm", {"batch": many, "rows": a, "inner": b, "cols": c, "transposed": transposed}, dtype)

    softmax = EagerOperator("softmax", {"rows": many * rows, "cols": cols}, dtype)
    forward = [product(rows, inner, cols, 1), softmax, product(rows, cols, value)]
    if not is_backward(operator.name):
        return [copied, *forward]
    of_values, of_weights = product(cols, rows, value), product(rows, value, cols, 1)
    return [copied, *forward[:2], of_values, of_weights, product(rows, cols, inner), product(cols, rows, inner)]


def _of_products(operator: EagerOperator, device: Device) -> float:
    """Seconds of a call over those of its parts: what no query sees is skipped."""
    seen = attended_pairs(operator["rows"], operator["cols"], bool(operator["causal"]))
    share = seen / (operator["rows"] * operator["cols"])
    is_simt = device.kind != "cpu" and 0 < capability_of(str(device.target.get("arch", "")))[0] < 8
    return share * (_UNFUSED[is_backward(operator.name)] if is_simt else 1.0)
