"""What each resource of a GPU would need for a kernel: issue slots, pipes, shared memory, caches, DRAM, waits.

Warp-level throughput and latency bounds, filled wave by wave. The constants are architectural (cycles).
"""

from __future__ import annotations

import torch
from torch import Tensor

from cdmpp.model.kernel_quantities import KernelQuantities

GPU_PARTS = {
    "fp": "compute",
    "special": "compute",
    "fp_issue": "issue",
    "special_issue": "issue",
    "integer_issue": "issue",
    "division_issue": "issue",
    "select_issue": "issue",
    "branch_issue": "issue",
    "shared_load_issue": "issue",
    "shared_store_issue": "issue",
    "global_load_issue": "issue",
    "global_store_issue": "issue",
    "shared_load": "near_memory",
    "shared_store": "near_memory",
    "spill_traffic": "near_memory",
    "l1_load": "l1",
    "l1_store": "l1",
    "l2_load": "l2",
    "l2_store": "l2",
    "dram_read": "dram",
    "dram_write": "dram",
    "refill": "latency",
    "hidden_refill": "latency",
    "first_load": "latency",
    "shared_wait": "latency",
    "global_wait": "latency",
    "local_memory": "latency",
    "spill": "latency",
    "barrier": "latency",
    "cross_thread": "latency",
    "launch": "launch",
}
_LAUNCH_S = 1.5e-6
_WARP, _SECTOR_BYTES = 32.0, 32.0
_L2_OVER_DRAM = 2.6
_REFILL_CYCLES, _FIRST_LOAD_CYCLES = 700.0, 500.0
_DIVISION_INSTRUCTIONS, _BARRIER_CYCLES = 4.0, 10.0
_SHARED_WAIT_CYCLES, _GLOBAL_WAIT_CYCLES = 5.0, 20.0
_LOCAL_CYCLES, _CROSS_THREAD_CYCLES = 35.0, 50.0
_MAX_REGISTERS = 255.0
_ROUNDING = 1e-5


class Occupancy:
    """How many blocks a multiprocessor holds, and how often it is filled; (B, K) each."""

    def __init__(self, k: KernelQuantities) -> None:
        cores = k.device("core_count")
        self.warps = warps = k["warps_per_block"].clamp_min(1)
        self.registers_needed = 24 + 1.2 * k["register_elements"]
        # The compiler knows the block's size and leaves each thread no more than lets one block run.
        self.register_limit = (k.device("registers_per_core") / (warps * _WARP)).clamp_max(_MAX_REGISTERS)
        self.registers = torch.minimum(self.registers_needed, self.register_limit).clamp_min(16)
        limits = [
            _floor(k.device("max_threads_per_core") / (warps * _WARP)),
            _floor(k.device("shared_kb_per_core") * 1024 / (k["shared_bytes"] + 1024)),
            _floor(k.device("registers_per_core") / (self.registers * warps * _WARP)),
            torch.full_like(warps, 32.0),
        ]
        self.resident = torch.stack(limits).amin(0).clamp_min(1)
        self.active_blocks = torch.minimum(_ceil(k["blocks"] / cores), self.resident).clamp_min(1)
        self.active_warps = self.active_blocks * warps
        self.total_warps = _ceil(k["blocks"] / cores).clamp_min(1) * warps
        self.rounds = _ceil(k["blocks"] / (cores * self.active_blocks)).clamp_min(1)


# Features are logarithms in single precision: 216 blocks come back as 216.0001 and must not start another round.
def _floor(x: Tensor) -> Tensor:
    return (x * (1 + _ROUNDING)).floor()


def _ceil(x: Tensor) -> Tensor:
    return (x * (1 - _ROUNDING)).ceil()


def gpu_parts(k: KernelQuantities) -> dict[str, Tensor]:
    """(B, K) seconds of each of ``GPU_PARTS``."""
    on = Occupancy(k)
    cycle = 1 / (k.device("clock_mhz") * 1e6)
    bandwidth = 1e9 * k.device("bandwidth_gbps")
    lanes = (k.flops_per_cycle() / 2).clamp_min(_WARP)
    # One warp alone issues an instruction every two cycles at best; enough warps fill the pipes.
    alone = torch.full_like(on.warps, 2.0)
    # A pipe is busy for every warp that a multiprocessor ever gets, however they fall into rounds.
    pipe = cycle * torch.maximum(alone * on.rounds, on.total_warps * _WARP / lanes)
    slot = cycle * torch.maximum(alone * on.rounds, on.total_warps / 4)
    per_warp = cycle * on.total_warps
    l2 = k["blocks"] * on.warps * _SECTOR_BYTES / (_L2_OVER_DRAM * bandwidth)
    # Thread-local arrays that do not fit, or are not indexed by constants, live in memory: each use is a round trip.
    round_trip = cycle * on.rounds * torch.maximum(torch.full_like(on.warps, _LOCAL_CYCLES), on.active_warps)
    spilled = (1 - on.register_limit / on.registers_needed).clamp_min(0) * 2 * k["fp_per_thread"]
    threads = (k["blocks"] * on.warps * _WARP).clamp_min(1)
    refill = cycle * on.rounds * k["refill_rounds"] * _REFILL_CYCLES
    return {
        "fp": pipe * k["fp_per_thread"],
        "special": pipe * 4 * k["special_per_thread"],
        "fp_issue": slot * k["fp_per_thread"],
        "special_issue": slot * k["special_per_thread"],
        "integer_issue": slot * 0.3 * k["int_per_thread"],
        "division_issue": slot * _DIVISION_INSTRUCTIONS * k["intdiv_iterations"] / threads,
        "select_issue": slot * 0.5 * k["select_per_thread"],
        "branch_issue": slot * 0.5 * k["branch_per_thread"],
        "shared_load_issue": slot * k["shared_loads_region_per_thread"],
        "shared_store_issue": slot * k["shared_stores_per_thread"],
        "global_load_issue": slot * k["global_loads_region_per_thread"],
        "global_store_issue": slot * k["global_stores_per_thread"],
        "shared_load": per_warp * k["shared_load_wavefronts_per_warp"],
        "shared_store": per_warp * k["shared_store_wavefronts_per_warp"],
        "spill_traffic": per_warp * 0.5 * spilled,
        "l1_load": per_warp * k["global_load_sectors_per_warp"] / 2,
        "l1_store": per_warp * k["global_store_sectors_per_warp"] / 2,
        "l2_load": l2 * k["global_load_sectors_per_warp"],
        "l2_store": l2 * k["global_store_sectors_per_warp"],
        "dram_read": k["global_read_bytes"] / bandwidth,
        "dram_write": k["global_write_bytes"] / bandwidth,
        "refill": 0.5 * refill,
        # Blocks that share a multiprocessor wait for memory while others compute.
        "hidden_refill": 0.5 * refill / on.active_blocks,
        "first_load": cycle * on.rounds * _FIRST_LOAD_CYCLES,
        # What a warp waits for its loads where too few others are there to fill the time.
        "shared_wait": cycle * on.rounds * k["shared_loads_region_per_thread"] * _SHARED_WAIT_CYCLES,
        "global_wait": cycle * on.rounds * k["global_loads_region_per_thread"] * _GLOBAL_WAIT_CYCLES,
        "local_memory": round_trip * k["local_memory_trips"],
        "spill": round_trip * spilled,
        "barrier": cycle * on.rounds * k["refill_rounds"] * on.warps * _BARRIER_CYCLES,
        "cross_thread": cycle * on.rounds * k["cross_thread_reductions"] * _CROSS_THREAD_CYCLES,
        "launch": torch.full_like(on.rounds, _LAUNCH_S),
    }
