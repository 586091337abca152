"""Devices, and the cores, launch overheads and sheets that describe them. No torch, no TVM."""

from cdmpp.devices.device import (
    KINDS,
    SPEC_FIELDS,
    VECTOR_FIELDS,
    VECTOR_WIDTH,
    Device,
    all_devices,
    get,
    named,
    names,
    read_device,
    sheets_of,
)

__all__ = [
    "KINDS",
    "SPEC_FIELDS",
    "VECTOR_FIELDS",
    "VECTOR_WIDTH",
    "Device",
    "all_devices",
    "get",
    "named",
    "names",
    "read_device",
    "sheets_of",
]
