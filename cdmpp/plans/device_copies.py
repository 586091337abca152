"""Device copies: what FSDP takes from a GPU besides its links, by the datasheet."""

from __future__ import annotations

from cdmpp.devices import Device
from cdmpp.network.precision import Precision
from cdmpp.steps.transforms.copies import Copies

_BANDWIDTH = 0.73
"""Share of the memory's bandwidth that a large copy reaches: 0.714 was measured on an H100, 0.735 on an A100."""
_CHANNELS = 16
"""Blocks of NCCL that move one collective, each on a multiprocessor of its own; as it says of itself on eight GPUs of
an A100 or H100 node (``NCCL_DEBUG=INFO``)."""
_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def copies_on(device: Device, precision: Precision) -> Copies | None:
    """Return what FSDP2 copies on a GPU for each byte; None where nothing is known, or on a CPU.

    Gathered parameters are copied out of the buffer of the all-gather, gradients are cast into that of the
    reduce-scatter.
    """
    byte_s, cores = copied_byte_s(device), device.spec["core_count"]
    if byte_s is None or cores is None:
        return None
    made, reduced = (_ITEM_BYTES[one] for one in (precision.weights, precision.reduced or precision.weights))
    return Copies(2 * byte_s, (1 + made / reduced) * byte_s, min(_CHANNELS / cores, 0.5))


def copied_byte_s(device: Device) -> float | None:
    """Return the seconds of a byte that a large copy on a GPU reads or writes; None on a CPU, or where unknown."""
    bandwidth = device.spec["bandwidth_gbps"]
    return None if device.kind != "gpu" or bandwidth is None else 1 / (_BANDWIDTH * 1e9 * bandwidth)
