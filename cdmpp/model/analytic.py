"""Analytic kernel times: what each resource of the device would need. Physics and datasheets, no trained weights.

GPU: warp-level throughput and latency bounds (issue slots, FMA pipes, shared-memory wavefronts, L1/L2 sectors, DRAM),
filled wave by wave. CPU: vector and scalar pipes, dependence chains, load ports, and a miss curve read at the
device's own cache sizes. The constants are architectural (cycles) and no optimiser fitted them, but which effects are
modelled, and the sizes of two of them (``_LOCAL_CYCLES``, the price of odd vector lengths), were chosen by hand after
looking at residuals over all records, those of later test programs included.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cdmpp.ast.layout import CACHE_KIB, KERNEL_NAMES
from cdmpp.devices import SPEC_FIELDS

TERMS = ("compute", "issue", "near_memory", "l1", "l2", "dram", "latency", "launch")
"""What can bound a kernel, seconds. ``near_memory``: shared memory on GPUs, load and store ports on CPUs.
``latency`` (refill round trips; dependence chains) and ``launch`` add to the slowest of the others."""
N_TERMS = len(TERMS)
N_OVERLAPPING = 6
STATES = ("occupancy_warps", "waves", "rounds", "blocks_per_core", "registers_per_thread")
"""Launch state on this device (log2(1 + x)), for the kernel token."""
N_STATES = len(STATES)

_TYPICAL = {
    # (cpu, gpu) values where the datasheet is silent.
    "clock_mhz": (2500.0, 1500.0),
    "core_count": (1.0, 80.0),
    "fp32_tflops": (0.1, 15.0),
    "bandwidth_gbps": (20.0, 900.0),
    "shared_kb_per_core": (0.0, 96.0),
    "l1_kb_per_core": (32.0, 128.0),
    "l2_kb": (1024.0, 6144.0),
    "l3_kb": (16384.0, 0.0),
    "registers_per_core": (32.0, 65536.0),
    "max_threads_per_core": (1.0, 2048.0),
    "simd_bits": (256.0, 0.0),
    "fma_units_per_core": (2.0, 64.0),
}
_FLOOR_S = 1e-9
_LAUNCH_S = (2e-7, 1.5e-6)
_WARP = 32.0
_L2_OVER_DRAM = 2.6
_REFILL_CYCLES, _FIRST_LOAD_CYCLES = 700.0, 500.0
_LOCAL_CYCLES = 35.0
_MAX_REGISTERS = 255.0


class _Kernel:
    """Physical quantities of (B, K) kernels by name; device numbers as (B, 1)."""

    def __init__(self, features: Tensor, spec: Tensor, kinds: Tensor) -> None:
        self.features, self.spec, self.kinds = features, spec, kinds

    def __getitem__(self, name: str) -> Tensor:
        column = self.features[..., KERNEL_NAMES.index(name)]
        if name.endswith(("_flag", "_fraction", "_share")):
            return column
        return torch.exp2(column) - 1

    def device(self, name: str) -> Tensor:
        known = self.spec[:, SPEC_FIELDS.index(name)]
        typical = torch.tensor(_TYPICAL[name], device=known.device, dtype=known.dtype)[self.kinds]
        return torch.where(known > 0, known, typical)[:, None]


def kernel_times(kernel_features: Tensor, device_spec: Tensor, kinds: Tensor) -> Tensor:
    """Seconds that each resource would need.

    Args:
        kernel_features: (B, K, KERNEL_WIDTH), log2(1 + x) of the quantities in ``layout.KERNEL_NAMES``.
        device_spec: (B, len(SPEC_FIELDS)) raw datasheet numbers, 0 where unknown.
        kinds: (B,) int64, 0 cpu, 1 gpu.

    Returns:
        (B, K, N_TERMS) seconds, at least a nanosecond each.
    """
    k = _Kernel(kernel_features, device_spec, kinds)
    times = torch.where((kinds == 1)[:, None, None], _gpu(k)[0], _cpu(k)[0])
    launch = torch.tensor(_LAUNCH_S, device=kinds.device, dtype=times.dtype)[kinds]
    return torch.cat([times, launch[:, None, None].expand(*times.shape[:2], 1)], dim=-1).clamp_min(_FLOOR_S)


def kernel_states(kernel_features: Tensor, device_spec: Tensor, kinds: Tensor) -> Tensor:
    """(B, K, N_STATES): how the launch fills the device, log2(1 + x). Arguments as ``kernel_times``."""
    k = _Kernel(kernel_features, device_spec, kinds)
    return torch.log2(1 + torch.where((kinds == 1)[:, None, None], _gpu(k)[1], _cpu(k)[1]).clamp_min(0))


def kernel_seconds(times: Tensor) -> Tensor:
    """(..., N_TERMS) -> (...): the slowest of the overlapping terms plus latency and launch."""
    return times[..., :N_OVERLAPPING].amax(-1) + times[..., N_OVERLAPPING:].sum(-1)


def _gpu(k: _Kernel) -> tuple[Tensor, Tensor]:
    clock = k.device("clock_mhz") * 1e6
    cores = k.device("core_count")
    blocks, warps = k["blocks"], k["warps_per_block"].clamp_min(1)
    needed = 24 + 1.2 * k["register_elements"]
    registers = needed.clamp(16, _MAX_REGISTERS)
    resident = torch.stack(
        [
            (k.device("max_threads_per_core") / (warps * _WARP)).floor(),
            (k.device("shared_kb_per_core") * 1024 / (k["shared_bytes"] + 1024)).floor(),
            (k.device("registers_per_core") / (registers * warps * _WARP)).floor(),
            torch.full_like(warps, 32.0),
        ],
    ).amin(0).clamp_min(1)  # fmt: skip
    active_blocks = torch.minimum((blocks / cores).ceil(), resident).clamp_min(1)
    active_warps = active_blocks * warps
    rounds = (blocks / (cores * active_blocks)).ceil().clamp_min(1)
    lanes = (k.device("fp32_tflops") * 1e12 / (2 * clock * cores)).clamp_min(_WARP)
    fp, special = k["fp_per_thread"], k["special_per_thread"]
    # One warp alone issues an instruction every two cycles at best; enough warps fill the pipes.
    compute = rounds * (fp + 4 * special) * torch.maximum(torch.full_like(warps, 2.0), active_warps * _WARP / lanes)
    instructions = (
        fp + special + k["shared_loads_region_per_thread"] + k["shared_stores_per_thread"]
        + k["global_loads_region_per_thread"] + k["global_stores_per_thread"]
        + 0.5 * k["select_per_thread"] + 0.5 * k["branch_per_thread"]
    )  # fmt: skip
    issue = rounds * instructions * torch.maximum(torch.full_like(warps, 2.0), active_warps / 4)
    wavefronts = k["shared_load_wavefronts_per_warp"] + k["shared_store_wavefronts_per_warp"]
    near = rounds * active_warps * wavefronts
    sectors = k["global_load_sectors_per_warp"] + k["global_store_sectors_per_warp"]
    l1 = rounds * active_warps * sectors / 2
    l2 = blocks * warps * sectors * 32 / (_L2_OVER_DRAM * 1e9 * k.device("bandwidth_gbps"))
    dram = (k["global_read_bytes"] + k["global_write_bytes"]) / (1e9 * k.device("bandwidth_gbps"))
    # Thread-local arrays that do not fit, or are not indexed by constants, live in memory: each use is a round trip.
    spilled = (1 - _MAX_REGISTERS / needed).clamp_min(0) * 2 * fp
    round_trip = torch.maximum(torch.full_like(warps, _LOCAL_CYCLES), active_warps)
    local = rounds * (k["local_memory_trips"] + spilled) * round_trip
    latency = rounds * (k["refill_rounds"] * _REFILL_CYCLES + _FIRST_LOAD_CYCLES) + local
    times = torch.stack([compute / clock, issue / clock, near / clock, l1 / clock, l2, dram, latency / clock], dim=-1)
    state = torch.stack([active_warps, blocks / (cores * resident), rounds, resident, registers], dim=-1)
    return times, state


def _cpu(k: _Kernel) -> tuple[Tensor, Tensor]:
    clock = k.device("clock_mhz") * 1e6
    cores = torch.minimum(k.device("core_count"), k["parallel_extent"].clamp_min(1))
    peak = k.device("fp32_tflops") * 1e12 / k.device("core_count")
    lanes = (k.device("simd_bits") / 32).clamp_min(1)
    special = (20 * k["special_iterations"] + 8 * k["intdiv_iterations"]) / lanes
    compute = k["flops"] / peak + special / clock
    issue = (k["scalar_iterations"] + k["vector_iterations"]) / 4 / clock
    # LLVM takes vectors whose length is no power of two apart, element by element.
    split = k["gather_iterations"] + 0.25 * k["odd_vector_iterations"]
    near = (k["load_instructions"] / 2 + k["store_instructions"] + split) / clock
    misses = torch.stack([k[f"miss_bytes_{kib}kib"] for kib in CACHE_KIB], dim=-1)
    l1 = _miss_at(misses, k.device("l1_kb_per_core")) / (32 * clock)
    l2 = _miss_at(misses, k.device("l2_kb")) / (12 * clock)
    dram = _miss_at(misses, k.device("l3_kb")) / (1e9 * k.device("bandwidth_gbps"))
    latency = 4 * k["chain_iterations"] / clock
    times = torch.stack([compute, issue, near, l1, l2, dram, latency], dim=-1) / cores[..., None]
    state = torch.stack(
        [cores, k["parallel_extent"] / cores, k["code_steps"], k["local_memory_trips"], k["leaves"]], -1
    )
    return times, state


def _miss_at(misses: Tensor, capacity_kib: Tensor) -> Tensor:
    """Miss curve (B, K, len(CACHE_KIB)) read at a capacity (B, 1): linear in log(capacity), in log(bytes)."""
    grid = torch.log2(torch.tensor(CACHE_KIB, device=misses.device, dtype=misses.dtype))
    x = torch.log2(capacity_kib.clamp_min(1)).clamp(grid[0], grid[-1]).squeeze(-1)
    right = torch.searchsorted(grid, x.contiguous()).clamp(1, len(CACHE_KIB) - 1)
    share = ((x - grid[right - 1]) / (grid[right] - grid[right - 1]))[:, None]
    logs = torch.log2(1 + misses)
    index = right[:, None, None].expand(-1, misses.shape[1], 1)
    low, high = logs.gather(2, index - 1).squeeze(-1), logs.gather(2, index).squeeze(-1)
    return torch.exp2(low + share * (high - low)) - 1
