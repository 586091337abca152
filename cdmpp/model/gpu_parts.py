"""Seconds that each resource of a GPU would need for a kernel: pipes, memories, waits. Constants are architectural."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cdmpp.model.kernel_quantities import KernelQuantities

_LAUNCH_S = 1.5e-6
_WARP, _SECTOR_BYTES = 32.0, 32.0
_L2_OVER_DRAM = 2.6
_REFILL_CYCLES, _FIRST_LOAD_CYCLES = 700.0, 500.0
_DIVISION_INSTRUCTIONS, _BARRIER_CYCLES = 4.0, 10.0
_SHARED_WAIT_CYCLES, _GLOBAL_WAIT_CYCLES = 5.0, 20.0
_LOCAL_CYCLES, _CROSS_THREAD_CYCLES = 35.0, 50.0
_MAX_REGISTERS = 255.0
_ROUNDING = 1e-5


class Occupancy(KernelQuantities):
    """A multiprocessor holds so many blocks, and is filled so many times; (B, K) each."""

    def __init__(self, features: Tensor, spec: Tensor, kinds: Tensor) -> None:
        super().__init__(features, spec, kinds)
        cores = self.device("core_count")
        self.warps = warps = self["warps_per_block"].clamp_min(1)
        self.registers_needed = 24 + 1.2 * self["register_elements"]
        # The compiler knows the block's size and leaves each thread no more than lets one block run.
        self.register_limit = (self.device("registers_per_core") / (warps * _WARP)).clamp_max(_MAX_REGISTERS)
        self.registers = torch.minimum(self.registers_needed, self.register_limit).clamp_min(16)
        limits = [
            _floor(self.device("max_threads_per_core") / (warps * _WARP)),
            _floor(self.device("shared_kb_per_core") * 1024 / (self["shared_bytes"] + 1024)),
            _floor(self.device("registers_per_core") / (self.registers * warps * _WARP)),
            torch.full_like(warps, 32.0),
        ]
        self.resident = torch.stack(limits).amin(0).clamp_min(1)
        self.active_blocks = torch.minimum(_ceil(self["blocks"] / cores), self.resident).clamp_min(1)
        self.active_warps = self.active_blocks * warps
        self.total_warps = _ceil(self["blocks"] / cores).clamp_min(1) * warps
        self.rounds = _ceil(self["blocks"] / (cores * self.active_blocks)).clamp_min(1)


# Features are logarithms in single precision: 216 blocks come back as 216.0001 and must not start another round.
def _floor(x: Tensor) -> Tensor:
    return (x * (1 + _ROUNDING)).floor()


def _ceil(x: Tensor) -> Tensor:
    return (x * (1 - _ROUNDING)).ceil()


class _Gpu(Occupancy):
    """Seconds of one use of each resource; (B, K) each."""

    def __init__(self, features: Tensor, spec: Tensor, kinds: Tensor) -> None:
        super().__init__(features, spec, kinds)
        cycle = 1 / (self.device("clock_mhz") * 1e6)
        self.bandwidth = 1e9 * self.device("bandwidth_gbps")
        lanes = (self.flops_per_cycle() / 2).clamp_min(_WARP)
        # One warp by itself issues an instruction every two cycles at best; enough warps fill the pipes.
        alone = 2.0 * self.rounds
        # A pipe is busy for every warp that a multiprocessor ever gets, however they fall into rounds.
        self.pipe = cycle * torch.maximum(alone, self.total_warps * _WARP / lanes)
        self.slot = cycle * torch.maximum(alone, self.total_warps / 4)
        self.warp, self.round = cycle * self.total_warps, cycle * self.rounds
        self.l2 = self["blocks"] * self.warps * _SECTOR_BYTES / (_L2_OVER_DRAM * self.bandwidth)
        # Thread-local arrays that do not fit, or are not indexed by constants, live in memory: a round trip each use.
        self.round_trip = self.round * self.active_warps.clamp_min(_LOCAL_CYCLES)
        self.spilled = (1 - self.register_limit / self.registers_needed).clamp_min(0) * 2 * self["fp_per_thread"]
        self.threads = (self["blocks"] * self.warps * _WARP).clamp_min(1)
        self.refill = self.round * self["refill_rounds"] * _REFILL_CYCLES


GPU_PARTS: dict[str, tuple[str, Callable[[_Gpu], Tensor]]] = {
    "fp": ("compute", lambda g: g.pipe * g["fp_per_thread"]),
    "special": ("compute", lambda g: g.pipe * 4 * g["special_per_thread"]),
    "fp_issue": ("issue", lambda g: g.slot * g["fp_per_thread"]),
    "special_issue": ("issue", lambda g: g.slot * g["special_per_thread"]),
    "integer_issue": ("issue", lambda g: g.slot * 0.3 * g["int_per_thread"]),
    "division_issue": ("issue", lambda g: g.slot * _DIVISION_INSTRUCTIONS * g["intdiv_iterations"] / g.threads),
    "select_issue": ("issue", lambda g: g.slot * 0.5 * g["select_per_thread"]),
    "branch_issue": ("issue", lambda g: g.slot * 0.5 * g["branch_per_thread"]),
    "shared_load_issue": ("issue", lambda g: g.slot * g["shared_loads_region_per_thread"]),
    "shared_store_issue": ("issue", lambda g: g.slot * g["shared_stores_per_thread"]),
    "global_load_issue": ("issue", lambda g: g.slot * g["global_loads_region_per_thread"]),
    "global_store_issue": ("issue", lambda g: g.slot * g["global_stores_per_thread"]),
    "shared_load": ("near_memory", lambda g: g.warp * g["shared_load_wavefronts_per_warp"]),
    "shared_store": ("near_memory", lambda g: g.warp * g["shared_store_wavefronts_per_warp"]),
    "spill_traffic": ("near_memory", lambda g: g.warp * 0.5 * g.spilled),
    "l1_load": ("l1", lambda g: g.warp * g["global_load_sectors_per_warp"] / 2),
    "l1_store": ("l1", lambda g: g.warp * g["global_store_sectors_per_warp"] / 2),
    "l2_load": ("l2", lambda g: g.l2 * g["global_load_sectors_per_warp"]),
    "l2_store": ("l2", lambda g: g.l2 * g["global_store_sectors_per_warp"]),
    "dram_read": ("dram", lambda g: g["global_read_bytes"] / g.bandwidth),
    "dram_write": ("dram", lambda g: g["global_write_bytes"] / g.bandwidth),
    "refill": ("latency", lambda g: 0.5 * g.refill),
    # Blocks that share a multiprocessor wait for memory while others compute.
    "hidden_refill": ("latency", lambda g: 0.5 * g.refill / g.active_blocks),
    "first_load": ("latency", lambda g: g.round * _FIRST_LOAD_CYCLES),
    # What a warp waits for its loads where too few others are there to fill the time.
    "shared_wait": ("latency", lambda g: g.round * g["shared_loads_region_per_thread"] * _SHARED_WAIT_CYCLES),
    "global_wait": ("latency", lambda g: g.round * g["global_loads_region_per_thread"] * _GLOBAL_WAIT_CYCLES),
    "local_memory": ("latency", lambda g: g.round_trip * g["local_memory_trips"]),
    "spill": ("latency", lambda g: g.round_trip * g.spilled),
    "barrier": ("latency", lambda g: g.round * g["refill_rounds"] * g.warps * _BARRIER_CYCLES),
    "cross_thread": ("latency", lambda g: g.round * g["cross_thread_reductions"] * _CROSS_THREAD_CYCLES),
    "launch": ("launch", lambda g: torch.full_like(g.rounds, _LAUNCH_S)),
}
"""Name -> the bound that it belongs to (``analytic.BOUNDS``), and its seconds."""


def gpu_parts(features: Tensor, spec: Tensor, kinds: Tensor) -> Tensor:
    """Return seconds of each part, (B, K, len(GPU_PARTS))."""
    gpu = _Gpu(features, spec, kinds)
    return torch.stack([seconds(gpu) for _, seconds in GPU_PARTS.values()], dim=-1)
