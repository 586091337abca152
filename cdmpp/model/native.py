"""The compiled library of the model, ``native/network.cpp``: how Python calls it, and the parts of kernels by it."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from cdmpp.ast.kernel_features import KERNEL_FEATURES
from cdmpp.ast.leaf_features import CACHE_KIB, CROWDED_KIB
from cdmpp.model.kernel_quantities import KernelQuantities
from cdmpp.platform.extension import extension

_POINTS = 32
"""Points of a miss curve at most."""


@functools.cache
def native_network() -> ctypes.CDLL:
    """Load the compiled library; ``MissingToolError`` where it was not built."""
    library = ctypes.CDLL(str(extension("network")))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for name, arguments, result in (
        ("quantities", (), ctypes.c_char_p),
        ("numbers", (), ctypes.c_char_p),
        ("new", (pointer,) * 5, pointer),
        ("delete", (pointer,), None),
        ("answers", (pointer, pointer, pointer, number, pointer, ctypes.c_int32), None),
        ("trainer_new", (pointer,) * 5, pointer),
        ("trainer_delete", (pointer,), None),
        ("forward", (*(pointer,) * 6, number, pointer, pointer, ctypes.c_int32), pointer),
        ("backward", (pointer, pointer, number, pointer, pointer, pointer, ctypes.c_int32), None),
        ("pass_delete", (pointer,), None),
        ("pooled", (pointer, pointer, pointer, number, number, pointer), None),
        ("ranker_new", (pointer, number, number, number, ctypes.c_float), pointer),
        ("ranker_delete", (pointer,), None),
        ("ranker_gradients", (pointer, pointer, number, ctypes.c_int32), None),
        ("ranker_scores", (pointer, pointer, number, pointer), None),
        ("compare", (pointer, pointer, pointer, pointer, number, pointer, pointer), None),
    ):
        function = getattr(library, f"network_{name}")
        function.argtypes, function.restype = arguments, result
    return library


@functools.cache
def layout() -> Any:
    """Return where kernel vectors have the quantities that the library reads, as it takes them."""
    names = _names("quantities")
    columns = {feature.name: (place, feature.plain) for place, feature in enumerate(KERNEL_FEATURES)}

    class Layout(ctypes.Structure):
        _fields_ = (
            ("column", ctypes.c_int32 * len(names)),
            ("plain", ctypes.c_int32 * len(names)),
            ("n_misses", ctypes.c_int32),
            ("n_crowded", ctypes.c_int32),
            ("misses", ctypes.c_int32 * _POINTS),
            ("crowded", ctypes.c_int32 * _POINTS),
            ("misses_kib", ctypes.c_float * _POINTS),
            ("crowded_kib", ctypes.c_float * _POINTS),
        )

    curves = {
        "misses": [columns[f"miss_bytes_{kib}kib"][0] for kib in CACHE_KIB],
        "crowded": [columns[f"crowded_miss_bytes_{kib}kib"][0] for kib in CROWDED_KIB],
        "misses_kib": list(CACHE_KIB),
        "crowded_kib": list(CROWDED_KIB),
    }
    made = Layout(n_misses=len(CACHE_KIB), n_crowded=len(CROWDED_KIB))
    for name, values in curves.items():
        getattr(made, name)[: len(values)] = values
    made.column[:] = [columns[name][0] for name in names]
    made.plain[:] = [int(columns[name][1]) for name in names]
    return made


def device_numbers(specs: Tensor) -> Tensor:
    """Return the numbers of devices that the library reads, (B, 2, N) float32: as of a CPU, then as of a GPU.

    They are typical ones where a sheet is silent. ``specs`` (B, len(SPEC_FIELDS)) as at ``KernelQuantities``.
    """
    both = specs.repeat_interleave(2, dim=0)
    told = KernelQuantities(both, both, torch.arange(len(both)) % 2)
    columns = [told.flops_per_cycle() if name == "flops_per_cycle" else told.device(name) for name in _names("numbers")]
    return torch.cat(columns, dim=1).float().reshape(len(specs), 2, -1).contiguous()


def _names(what: str) -> list[str]:
    told: bytes = getattr(native_network(), f"network_{what}")()
    return told.decode().strip(",").split(",")
