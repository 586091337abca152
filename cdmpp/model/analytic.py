"""Analytic kernel times: what each resource of the device would need. Physics and datasheets, no trained weights.

Each bound is a sum of parts, see ``gpu_parts`` and ``cpu_parts``; ``AnalyticalPrior`` fits one factor for each to the
training programs. Which effects are modelled was chosen by hand after looking at residuals over all records, those of
later test programs included.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cdmpp.model.cpu_parts import CPU_PARTS, cpu_parts, parallel_cores
from cdmpp.model.gpu_parts import GPU_PARTS, Occupancy, gpu_parts

BOUNDS = ("compute", "issue", "near_memory", "l1", "l2", "dram", "latency", "launch")
"""Resources that can bound a kernel. ``near_memory``: shared memory on GPUs, load and store ports on CPUs.
``latency`` (refill round trips; dependence chains) and ``launch`` add to the others, which overlap."""
N_BOUNDS = len(BOUNDS)
N_OVERLAPPING = 6
PARTS = tuple(f"cpu_{name}" for name in CPU_PARTS) + tuple(f"gpu_{name}" for name in GPU_PARTS)
N_PARTS = len(PARTS)
BOUND_OF_PART = tuple(BOUNDS.index(bound) for bound, _ in (*CPU_PARTS.values(), *GPU_PARTS.values()))
N_STATES = 5
_FLOOR_S = 1e-9


def kernel_parts(kernel_features: Tensor, device_spec: Tensor, kinds: Tensor) -> Tensor:
    """Return seconds of each part, (B, K, N_PARTS), zero for the other kind (``kinds`` (B,): 0 cpu, 1 gpu).

    They follow from ``kernel_features`` (B, K, KERNEL_WIDTH) and raw datasheet numbers (B, len(SPEC_FIELDS)), 0 where
    unknown.
    """
    on_gpu = (kinds == 1)[:, None, None]
    cpu_times, gpu_times = (parts(kernel_features, device_spec, kinds) for parts in (cpu_parts, gpu_parts))
    return torch.cat([cpu_times.masked_fill(on_gpu, 0.0), gpu_times.masked_fill(~on_gpu, 0.0)], dim=-1)


def bound_times(parts: Tensor, log_factor: Tensor | None = None) -> Tensor:
    """Sum (..., N_PARTS) seconds by bound, with log factors (N_PARTS,): (..., N_BOUNDS), at least a nanosecond."""
    member = torch.zeros(N_PARTS, N_BOUNDS, device=parts.device, dtype=parts.dtype)
    member[torch.arange(N_PARTS), torch.tensor(BOUND_OF_PART)] = 1.0
    weights = member if log_factor is None else member * log_factor.to(parts.dtype).exp()[:, None]
    return (parts @ weights).clamp_min(_FLOOR_S)


def kernel_seconds(times: Tensor, sharpness: Tensor | float = 1.0) -> Tensor:
    """Join bounds, (..., N_BOUNDS) -> (...): (sum t^p)^(1/p) of overlapping ones, plus rest; p = 1 + exp(sharpness)."""
    p = 1 + torch.as_tensor(sharpness, dtype=times.dtype, device=times.device).exp()
    overlapping = (p[..., None] * times[..., :N_OVERLAPPING].log()).logsumexp(-1) / p
    return overlapping.exp() + times[..., N_OVERLAPPING:].sum(-1)


def kernel_states(kernel_features: Tensor, device_spec: Tensor, kinds: Tensor) -> Tensor:
    """Say how a launch fills the device, log2(1 + x): (B, K, N_STATES). Arguments as ``kernel_parts``."""
    k = Occupancy(kernel_features, device_spec, kinds)
    waves, cores = k["blocks"] / (k.device("core_count") * k.resident), parallel_cores(k)
    gpu = [k.active_warps, waves, k.rounds, k.resident, k.registers]
    cpu = [cores, k["parallel_extent"] / cores, k["code_steps"], k["local_memory_trips"], k["leaves"]]
    states = torch.where((kinds == 1)[:, None, None], torch.stack(gpu, dim=-1), torch.stack(cpu, dim=-1))
    return torch.log2(1 + states.clamp_min(0))
