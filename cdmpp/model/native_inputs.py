"""Quantities of kernels and numbers of devices, in the order in which the compiled library of the model reads them."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from cdmpp.ast.kernel_features import KERNEL_FEATURES
from cdmpp.ast.leaf_features import CACHE_KIB, CROWDED_KIB
from cdmpp.model.kernel_quantities import KernelQuantities
from cdmpp.model.native import names_of

_POINTS = 32
"""Points of a miss curve at most."""


@functools.cache
def layout() -> Any:
    """Return where kernel vectors have the quantities that the library reads, as it takes them."""
    names = names_of("quantities")
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
    columns = [
        told.flops_per_cycle() if name == "flops_per_cycle" else told.device(name) for name in names_of("numbers")
    ]
    return torch.cat(columns, dim=1).float().reshape(len(specs), 2, -1).contiguous()
