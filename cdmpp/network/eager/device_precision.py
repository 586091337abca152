"""A device has matrix units for the types of a precision, computes without them, or cannot run it."""

from __future__ import annotations

import re
from dataclasses import replace

from cdmpp.devices import Device
from cdmpp.errors import UsageError
from cdmpp.network.precision import PRECISIONS, Precision, precision_of
from cdmpp.network.workload import Workload
from cdmpp.operators.float8 import is_of_engine

_NVIDIA = {"tf32": 80, "bfloat16": 80, "float8": 89, "mxfp8": 100}
"""Type -> the first compute capability, times ten, whose matrix units multiply it (CUDA C++ Programming Guide, table of
tensor core types per compute capability)."""
_AMD = {"bfloat16": 0x908, "tf32": 0x942, "float8": 0x942, "mxfp8": 0x950}
"""The same by architecture of AMD's matrix cores (AMD matrix instruction calculator)."""


def has_units(device: Device, dtype: str) -> bool | None:
    """Return whether the matrix units of a device multiply a type, by the architecture in its datasheet; None: unknown.

    Args:
        device: a device; of a CPU nothing is known.
        dtype: ``tf32``, ``bfloat16``, ``float8`` or ``mxfp8``.
    """
    target = device.target
    if found := re.fullmatch(r"sm_(\d+)[a-z]?", str(target.get("arch", ""))):
        return int(found[1]) >= _NVIDIA[dtype]
    if found := re.fullmatch(r"gfx([0-9a-f]+)", str(target.get("mcpu", ""))):
        return int(found[1], 16) >= _AMD[dtype]
    return None


def precision_on(precision: Precision, device: Device) -> tuple[Precision, tuple[str, ...]]:
    """Return what a device runs for a precision, and what is to be said of it, a sentence each.

    Raises:
        UsageError: float8 on a device that has no units for it.
    """
    name = f"{device.name}: precision {precision}"
    if precision.float8:
        units = "mxfp8" if precision.float8 == "blocks" else "float8"
        if has_units(device, units):
            casts = (
                "" if is_of_engine(precision.float8) else "; without torch.compile their casts are calls of their own"
            )
            return precision, (
                f"{name}: products in float8 were measured nowhere, and are answered as those in bfloat16 of half the "
                f"inner size{casts}",
            )
        first = "Blackwell" if units == "mxfp8" else "Ada and Hopper"
        raise UsageError(f"{name}: it has no matrix units for {units}, as GPUs from {first} on have: take bf16")
    if precision.tf32:
        if has_units(device, "tf32"):
            return precision, (
                f"{name}: products in TF32 were measured nowhere, and are answered as those in bfloat16 of twice the "
                "inner size",
            )
        return PRECISIONS["fp32"], (f"{name}: it has no matrix units for TF32, so torch computes in fp32",)
    if precision.products == "bfloat16" and has_units(device, "bfloat16") is False:
        return precision, (
            f"{name}: it has no matrix units for bfloat16, so products are answered as those of float32",
        )
    if precision.products == "bfloat16" and has_units(device, "bfloat16") is None:
        return precision, (f"{name}: its datasheet does not say whether it multiplies bfloat16: answered as fp16",)
    return precision, ()


def workload_on(workload: Workload, device: Device) -> tuple[Workload, tuple[str, ...]]:
    """Return a workload in the precision that a device runs, and what is to be said of it; errors as above."""
    precision, warnings = precision_on(precision_of(workload.precision), device)
    return replace(workload, precision=precision), warnings
