"""A GPU that is not there: what Inductor asks of one while it fuses, answered from a datasheet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from cdmpp.devices import Device
from cdmpp.errors import UnsupportedNetworkError
from cdmpp.operators.attention_rules import capability_of

PLACE = "cuda:0"
"""Name of the device that torch believes in."""
_WARP, _THREADS = 32, 1024
_OLDEST = (7, 0)
"""The first compute capability that Triton generates code for, as Inductor asks for it."""


def check_gpu(device: Device) -> None:
    """Raise ``UnsupportedNetworkError`` for a device whose kernels Inductor writes otherwise than read here, or not."""
    named = f"{device.name} ({device.architecture})"
    if device.kind == "cpu":
        why = f"Inductor fuses otherwise for {device.name}"
    elif capability_of(device.architecture) == (0, 0):
        why = f"for {named} Inductor lays out tensors, fuses and calls libraries by other rules, which are not read"
    elif capability_of(device.architecture) < _OLDEST:
        why = f"Triton writes no kernels for {named}, older than Volta"
    else:
        return
    raise UnsupportedNetworkError(
        f"runtime torch-compile answers for GPUs of NVIDIA, from Volta (sm_70) on: {why}. Use runtime torch"
    )


@contextlib.contextmanager
def absent_gpu(device: Device) -> Iterator[None]:
    """Let Inductor lower and schedule for ``device`` on a machine without it; nothing can run there.

    No kernel is compiled, so Triton need not be installed. What is replaced is put back at the end.
    """
    import torch
    import torch._inductor.scheduler as scheduler
    from torch._dynamo import device_interface
    from torch._inductor.runtime.hints import DeviceProperties
    from torch.utils import _triton

    sheet = _properties(device)
    interface = _interface(sheet)
    device_interface.get_interface_for_device("cpu")  # fills the table, which would else be filled over ours
    DeviceProperties.create.cache_clear()
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (scheduler, "has_triton", lambda: True),
            (torch.cuda, "get_device_properties", lambda _=None: sheet),
            (torch.cuda, "get_device_capability", lambda _=None: (sheet.major, sheet.minor)),
            (torch.cuda, "current_device", lambda: 0),
            (_triton, "triton_hash_with_backend", lambda: ""),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        table = device_interface.device_interfaces
        stack.enter_context(mock.patch.dict(table, {"cuda": interface, PLACE: interface}))
        try:
            yield
        finally:
            DeviceProperties.create.cache_clear()


def _properties(device: Device) -> SimpleNamespace:
    major, minor = capability_of(device.architecture)
    spec = device.spec
    return SimpleNamespace(
        name=device.title,
        major=major,
        minor=minor,
        multi_processor_count=int(spec["core_count"] or 1),
        regs_per_multiprocessor=int(spec["registers_per_core"] or 65536),
        max_threads_per_multi_processor=int(spec["max_threads_per_core"] or 2048),
        max_threads_per_block=_THREADS,
        warp_size=int(spec["warp_size"] or _WARP),
        total_memory=int(1e9 * (spec["memory_gb"] or 16)),
        shared_memory_per_block_optin=int(1024 * (spec["shared_kb_per_core"] or 48)),
        L2_cache_size=int(1024 * (spec["l2_kb"] or 4096)),
        gcnArchName="",
    )


def _interface(sheet: SimpleNamespace) -> Any:
    from torch._dynamo.device_interface import DeviceInterface

    shared = {
        "current_device": staticmethod(lambda: 0),
        "get_device_properties": staticmethod(lambda device=None: sheet),
        "set_device": staticmethod(lambda device: None),
    }
    answers = {
        **shared,
        "Worker": type("Worker", (), shared),
        "device": staticmethod(lambda *_: contextlib.nullcontext()),
        "device_count": staticmethod(lambda: 1),
        "get_compute_capability": staticmethod(lambda device=None: 10 * sheet.major + sheet.minor),
        "get_raw_stream": staticmethod(lambda index: 0),
        "is_available": staticmethod(lambda: True),
        "is_bf16_supported": staticmethod(lambda including_emulation=False: sheet.major >= 8),
        "is_triton_capable": staticmethod(lambda device=None: sheet.major >= 7),
        "raise_if_triton_unavailable": staticmethod(lambda device=None: None),
        "synchronize": staticmethod(lambda device=None: None),
    }
    return type("AbsentGpu", (DeviceInterface,), answers)
