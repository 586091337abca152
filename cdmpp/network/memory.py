"""Whether what a network holds fits into the memory of its device."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.devices import Device
from cdmpp.network.prediction import NetworkPrediction
from cdmpp.network.quantity import quantity

_GB = 1 << 30
"""Bytes: makers of devices mean no less by a GB of memory."""


def with_memory_told(prediction: NetworkPrediction, sheet: Device, peak_bytes: int | None = None) -> NetworkPrediction:
    """The prediction; its first doubt says so where the network holds more than the device's memory.

    ``peak_bytes`` is what is held, where it is not the prediction's own ``peak_bytes``. A device whose sheet names no
    size of its memory gets no such doubt.
    """
    held, size_gb = prediction.peak_bytes if peak_bytes is None else peak_bytes, sheet.spec["memory_gb"]
    if not size_gb or held <= size_gb * _GB:
        return prediction
    told = (
        f"WARNING: it holds {quantity(held, 'B')} at a time, but {sheet.name} has {size_gb:g} GB of memory: it cannot "
        "run there as it is, so the time is that of a device with more memory"
    )
    return replace(prediction, doubts=(told, *prediction.doubts))
