"""Analytic kernel times: what each resource of the device would need. Physics and datasheets, no trained weights.

GPU: warp-level throughput and latency bounds (issue slots, FMA pipes, shared-memory wavefronts, L1/L2 sectors, DRAM),
filled wave by wave. CPU: vector and scalar pipes, dependence chains, load ports, and a miss curve read at the
device's own cache sizes. Each bound is a sum of parts, such as the loads and the stores of one memory; the constants
here are architectural (cycles), and ``anchor.Anchor`` fits one factor a part to the training programs. Which effects
are modelled was chosen by hand after looking at residuals over all records, those of later test programs included.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cdmpp.ast.layout import CACHE_KIB, CROWDED_KIB, KERNEL_NAMES
from cdmpp.devices import SPEC_FIELDS

BOUNDS = ("compute", "issue", "near_memory", "l1", "l2", "dram", "latency", "launch")
"""What can bound a kernel. ``near_memory``: shared memory on GPUs, load and store ports on CPUs.
``latency`` (refill round trips; dependence chains) and ``launch`` add to the others, which overlap."""
N_BOUNDS = len(BOUNDS)
N_OVERLAPPING = 6
CPU_PARTS = {
    "flops": "compute",
    "special": "compute",
    "integer_division": "compute",
    "scalar_issue": "issue",
    "vector_issue": "issue",
    "loop_issue": "issue",
    "load_ports": "near_memory",
    "store_ports": "near_memory",
    "gather": "near_memory",
    "odd_vectors": "near_memory",
    "l1_misses": "l1",
    "l1_conflicts": "l1",
    "l2_misses": "l2",
    "page_misses": "l2",
    "page_walks": "l2",
    "l3_misses": "dram",
    "chain": "latency",
    "allocation": "latency",
    "call": "launch",
}
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
PARTS = tuple(f"cpu_{name}" for name in CPU_PARTS) + tuple(f"gpu_{name}" for name in GPU_PARTS)
N_PARTS = len(PARTS)
_BOUND_OF_PART = tuple(BOUNDS.index(bound) for bound in (*CPU_PARTS.values(), *GPU_PARTS.values()))
STATES = ("occupancy_warps", "waves", "rounds", "blocks_per_core", "registers_per_thread")
"""Launch state on this device (log2(1 + x)), for the kernel token."""
N_STATES = len(STATES)

_TYPICAL = {
    # (cpu, gpu) values where the datasheet is silent.
    "clock_mhz": (2500.0, 1500.0),
    "core_count": (1.0, 80.0),
    "bandwidth_gbps": (1e6, 900.0),  # CPUs: no limit but _CORE_GBPS
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
_ROUNDING = 1e-5
_CALL_S, _LAUNCH_S = 2e-7, 1.5e-6
_WARP, _SECTOR_BYTES = 32.0, 32.0
_L2_OVER_DRAM = 2.6
_REFILL_CYCLES, _FIRST_LOAD_CYCLES = 700.0, 500.0
_DIVISION_INSTRUCTIONS, _BARRIER_CYCLES = 4.0, 10.0
_SHARED_WAIT_CYCLES, _GLOBAL_WAIT_CYCLES = 5.0, 20.0
_LOCAL_CYCLES, _CROSS_THREAD_CYCLES = 35.0, 50.0
_MAX_REGISTERS = 255.0
_COUNTED_LANES = 16.0
_PAGE_MISS_CYCLES, _PAGE_WALK_CYCLES = 7.0, 30.0
_CORE_GBPS = 20.0
"""What one CPU core gets from memory, however many channels its socket has: its outstanding misses limit it."""


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

    def flops_per_cycle(self) -> Tensor:
        """Multiply and add counted apart, of one core. Where no rate is published, from its lanes and units."""
        cycles = self.device("clock_mhz") * 1e6 * self.device("core_count")
        published = self.spec[:, SPEC_FIELDS.index("fp32_tflops")][:, None]
        lanes = torch.where((self.kinds == 0)[:, None], (self.device("simd_bits") / 32).clamp_min(1), 1.0)
        units = 2 * lanes * self.device("fma_units_per_core")
        return torch.where(published > 0, published * 1e12 / cycles, units)


def kernel_parts(kernel_features: Tensor, device_spec: Tensor, kinds: Tensor) -> Tensor:
    """Seconds that each part would need.

    Args:
        kernel_features: (B, K, KERNEL_WIDTH), log2(1 + x) of the quantities in ``layout.KERNEL_NAMES``.
        device_spec: (B, len(SPEC_FIELDS)) raw datasheet numbers, 0 where unknown.
        kinds: (B,) int64, 0 cpu, 1 gpu.

    Returns:
        (B, K, N_PARTS) seconds; zero for the parts of the other kind.
    """
    k = _Kernel(kernel_features, device_spec, kinds)
    on_gpu = (kinds == 1)[:, None, None]
    cpu, gpu = _cpu_parts(k), _gpu_parts(k)
    cpu_times = torch.stack([cpu[name] for name in CPU_PARTS], dim=-1)
    gpu_times = torch.stack([gpu[name] for name in GPU_PARTS], dim=-1)
    zero = torch.zeros((), device=kinds.device, dtype=cpu_times.dtype)
    return torch.cat([torch.where(on_gpu, zero, cpu_times), torch.where(on_gpu, gpu_times, zero)], dim=-1)


def bound_times(parts: Tensor, log_factor: Tensor | None = None) -> Tensor:
    """(..., N_PARTS) seconds, log factors (N_PARTS,) -> (..., N_BOUNDS) seconds, at least a nanosecond each."""
    member = torch.zeros(N_PARTS, N_BOUNDS, device=parts.device, dtype=parts.dtype)
    member[torch.arange(N_PARTS), torch.tensor(_BOUND_OF_PART)] = 1.0
    weights = member if log_factor is None else member * log_factor.to(parts.dtype).exp()[:, None]
    return (parts @ weights).clamp_min(_FLOOR_S)


def kernel_seconds(times: Tensor, sharpness: Tensor | float = 1.0) -> Tensor:
    """(..., N_BOUNDS) -> (...): a soft maximum of the overlapping bounds, plus latency and launch.

    ``sharpness`` (broadcasts to the result) is the logarithm of p - 1 in (sum t^p)^(1/p): the larger, the nearer to
    the slowest bound alone.
    """
    p = 1 + torch.as_tensor(sharpness, dtype=times.dtype, device=times.device).exp()
    overlapping = (p[..., None] * times[..., :N_OVERLAPPING].log()).logsumexp(-1) / p
    return overlapping.exp() + times[..., N_OVERLAPPING:].sum(-1)


def kernel_states(kernel_features: Tensor, device_spec: Tensor, kinds: Tensor) -> Tensor:
    """(B, K, N_STATES): how the launch fills the device, log2(1 + x). Arguments as ``kernel_parts``."""
    k = _Kernel(kernel_features, device_spec, kinds)
    occupancy = _Occupancy(k)
    gpu = torch.stack(
        [
            occupancy.active_warps,
            k["blocks"] / (k.device("core_count") * occupancy.resident),
            occupancy.rounds,
            occupancy.resident,
            occupancy.registers,
        ],
        dim=-1,
    )
    cores = _parallel_cores(k)
    cpu = torch.stack(
        [cores, k["parallel_extent"] / cores, k["code_steps"], k["local_memory_trips"], k["leaves"]], dim=-1
    )
    return torch.log2(1 + torch.where((kinds == 1)[:, None, None], gpu, cpu).clamp_min(0))


class _Occupancy:
    """How many blocks a multiprocessor holds, and how often it is filled; (B, K) each."""

    def __init__(self, k: _Kernel) -> None:
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


def _gpu_parts(k: _Kernel) -> dict[str, Tensor]:
    on = _Occupancy(k)
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


def _cpu_parts(k: _Kernel) -> dict[str, Tensor]:
    cycle = 1 / (k.device("clock_mhz") * 1e6)
    cores = _parallel_cores(k)
    lanes = (k.device("simd_bits") / 32).clamp_min(1)
    narrower = _narrower(k)
    vector_share = k["vector_iterations"] / (k["vector_iterations"] + k["scalar_iterations"]).clamp_min(1)
    core_bandwidth = (k.device("bandwidth_gbps") / cores).clamp_max(_CORE_GBPS)
    misses = torch.stack([k[f"miss_bytes_{kib}kib"] for kib in CACHE_KIB], dim=-1)
    crowded = torch.stack([k[f"crowded_miss_bytes_{kib}kib"] for kib in CROWDED_KIB], dim=-1)
    l1_kib = k.device("l1_kb_per_core")
    l1_misses = _miss_at(misses, CACHE_KIB, l1_kib)
    one_core = {
        "flops": k["flops"] / k.flops_per_cycle() * cycle,
        "special": 20 * k["special_iterations"] / lanes * cycle,
        "integer_division": 8 * k["intdiv_iterations"] / lanes * cycle,
        "scalar_issue": k["scalar_iterations"] / 4 * cycle,
        "vector_issue": k["vector_iterations"] * narrower / 4 * cycle,
        "loop_issue": 0.05 * k["iterations"] / 4 * cycle,
        "load_ports": k["load_instructions"] * (1 + vector_share * (narrower - 1)) / 2 * cycle,
        "store_ports": k["store_instructions"] * (1 + vector_share * (narrower - 1)) * cycle,
        "gather": k["gather_iterations"] * cycle,
        # LLVM takes vectors whose length is no power of two apart, element by element.
        "odd_vectors": 0.25 * k["odd_vector_iterations"] * cycle,
        "l1_misses": l1_misses / 32 * cycle,
        "l1_conflicts": (_miss_at(crowded, CROWDED_KIB, l1_kib) - l1_misses).clamp_min(0) / 32 * cycle,
        "l2_misses": _miss_at(misses, CACHE_KIB, k.device("l2_kb")) / 12 * cycle,
        "page_misses": _PAGE_MISS_CYCLES * k["page_misses_64"] * cycle,
        "page_walks": _PAGE_WALK_CYCLES * k["page_misses_1536"] * cycle,
        "l3_misses": _miss_at(misses, CACHE_KIB, k.device("l3_kb")) / (1e9 * core_bandwidth),
        "chain": 4 * k["chain_iterations"] * cycle,
    }
    shared = {name: seconds / cores for name, seconds in one_core.items()}
    # Scratch memory is fetched from the system and given back in each call.
    allocation = 0.01 * k["allocated_bytes"] * cycle
    return {**shared, "allocation": allocation, "call": torch.full_like(k["flops"], _CALL_S)}


def _narrower(k: _Kernel) -> Tensor:
    """How many times the vector instructions that the features count, which take vectors to be 64 bytes wide."""
    vectorised = (k["iterations"] - k["scalar_iterations"]).clamp_min(0)
    wanted = vectorised / k["vector_iterations"].clamp_min(1)
    lanes = (k.device("simd_bits") / 32).clamp_min(1)
    return (wanted / lanes).clamp_min(1) / (wanted / _COUNTED_LANES).clamp_min(1)


def _parallel_cores(k: _Kernel) -> Tensor:
    return torch.minimum(k.device("core_count"), k["parallel_extent"].clamp_min(1))


def cores_used(kernel_features: Tensor, device_spec: Tensor, kinds: Tensor, mask: Tensor) -> Tensor:
    """(B,) how many cores a CPU program keeps busy on average, its kernels weighed by their iterations."""
    k = _Kernel(kernel_features, device_spec, kinds)
    work = (k["iterations"] + 1) * mask
    return work.sum(1) / (work / _parallel_cores(k)).sum(1)


def _miss_at(misses: Tensor, sampled_kib: tuple[int, ...], capacity_kib: Tensor) -> Tensor:
    """Miss curve (B, K, len(sampled_kib)) read at a capacity (B, 1): linear in log(capacity), in log(bytes)."""
    grid = torch.log2(torch.tensor(sampled_kib, device=misses.device, dtype=misses.dtype))
    x = torch.log2(capacity_kib.clamp_min(1)).clamp(grid[0], grid[-1]).squeeze(-1)
    right = torch.searchsorted(grid, x.contiguous()).clamp(1, len(sampled_kib) - 1)
    share = ((x - grid[right - 1]) / (grid[right] - grid[right - 1]))[:, None]
    logs = torch.log2(1 + misses)
    index = right[:, None, None].expand(-1, misses.shape[1], 1)
    low, high = logs.gather(2, index - 1).squeeze(-1), logs.gather(2, index).squeeze(-1)
    return torch.exp2(low + share * (high - low)) - 1
