"""Analytic kernel times: a roofline from physical kernel quantities and datasheet numbers. Nothing here is learned."""

from __future__ import annotations

import torch
from torch import Tensor

from cdmpp.ast.layout import KERNEL_NAMES
from cdmpp.devices import SPEC_FIELDS

TERMS = ("compute", "dram", "l2", "shared", "issue", "latency", "launch")
"""What can bound a kernel; all but ``launch`` overlap, so the slowest counts. Seconds."""
N_TERMS = len(TERMS)
_FALLBACK_SPEC = {"fp32_tflops": (0.05, 10.0), "bandwidth_gbps": (20.0, 500.0)}
_LAUNCH_S = (2e-7, 1.5e-6)
_FLOOR_S = 1e-9


def kernel_times(kernel_features: Tensor, device_spec: Tensor, kinds: Tensor) -> Tensor:
    """Seconds that each resource would need.

    Args:
        kernel_features: (B, K, KERNEL_WIDTH), log2(1 + x) of the quantities in ``layout.KERNEL_NAMES``.
        device_spec: (B, len(SPEC_FIELDS)) raw datasheet numbers, 0 where unknown.
        kinds: (B,) int64, 0 cpu, 1 gpu.

    Returns:
        (B, K, N_TERMS) seconds, at least a nanosecond each.
    """
    flops = _quantity(kernel_features, "flops")
    bytes_moved = _quantity(kernel_features, "bytes")
    terms = [torch.zeros_like(flops)] * N_TERMS
    terms[TERMS.index("compute")] = flops / (1e12 * _spec(device_spec, "fp32_tflops", kinds))
    terms[TERMS.index("dram")] = bytes_moved / (1e9 * _spec(device_spec, "bandwidth_gbps", kinds))
    terms[TERMS.index("launch")] = torch.tensor(_LAUNCH_S, device=flops.device)[kinds][:, None].expand_as(flops)
    return torch.stack(terms, dim=-1).clamp_min(_FLOOR_S)


def kernel_seconds(times: Tensor) -> Tensor:
    """(..., N_TERMS) -> (...): the slowest of the overlapping terms plus the launch."""
    return times[..., :-1].amax(-1) + times[..., -1]


def _quantity(kernel_features: Tensor, name: str) -> Tensor:
    """Physical value of a named column, zeros where the layout has no such column."""
    if name not in KERNEL_NAMES:
        return torch.zeros_like(kernel_features[..., 0])
    return torch.exp2(kernel_features[..., KERNEL_NAMES.index(name)]) - 1


def _spec(device_spec: Tensor, name: str, kinds: Tensor) -> Tensor:
    """(B, 1) datasheet number; where unknown, a typical one of the kind."""
    known = device_spec[:, SPEC_FIELDS.index(name)]
    typical = torch.tensor(_FALLBACK_SPEC[name], device=known.device)[kinds]
    return torch.where(known > 0, known, typical)[:, None]
