"""A warning where a network does not fit into the memory of its device."""

from __future__ import annotations

import math
from dataclasses import replace

from cdmpp.devices import Device
from cdmpp.network.prediction import NetworkPrediction
from cdmpp.units import quantity

_GB = 1 << 30
"""Bytes: makers of devices mean no less by a GB of memory."""
MOST_HOST_GB = 12_288.0
"""More than any machine of a described CPU holds: two sockets of 24 modules of 256 GB, as EPYC 9005 takes them."""


def with_memory_warning(
    prediction: NetworkPrediction, sheet: Device, peak_bytes: int | None = None
) -> NetworkPrediction:
    """Put a warning first where the network holds more than the device's memory.

    ``peak_bytes`` is what is held, where it is not the prediction's own ``peak_bytes``. The sheet of a CPU names no
    size of its memory, which depends on the machine: ``MOST_HOST_GB`` is its limit. Another device whose sheet names
    none gets no such warning.
    """
    warning = memory_warning(sheet, prediction.peak_bytes if peak_bytes is None else peak_bytes)
    return replace(prediction, warnings=(warning, *prediction.warnings)) if warning else prediction


def warnings_of_shares(prediction: NetworkPrediction, sheet: Device, peak_bytes: int) -> tuple[str, ...]:
    """Return the warnings without that of a device that would hold all ``peak_bytes``: several ranks may hold less."""
    undivided = memory_warning(sheet, peak_bytes)
    return tuple(one for one in prediction.warnings if one != undivided)


def memory_warning(sheet: Device, held_bytes: int, who: str = "it") -> str:
    """Say that ``who`` holds more bytes than the device has; empty where it fits, or where nobody knows."""
    size_gb = sheet.spec["memory_gb"]
    limit_gb = size_gb or (MOST_HOST_GB if sheet.kind == "cpu" else math.inf)
    if held_bytes <= limit_gb * _GB:
        return ""
    most = "" if size_gb else "at most "
    return (
        f"WARNING: {who} holds {quantity(held_bytes, 'B')} at a time, but {sheet.name} has {most}{limit_gb:g} GB of "
        "memory: it cannot run there as it is, so the time is that of a device with more memory"
    )
