"""What each resource of CPU cores would need for a kernel: pipes, ports, dependence chains, caches, pages, calls.

A miss curve is read at the device's own cache sizes. The constants are architectural (cycles).
"""

from __future__ import annotations

import torch
from torch import Tensor

from cdmpp.ast.leaf_features import CACHE_KIB, CROWDED_KIB
from cdmpp.model.kernel_quantities import KernelQuantities

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
_CALL_S = 2e-7
_COUNTED_LANES = 16.0
_PAGE_MISS_CYCLES, _PAGE_WALK_CYCLES = 7.0, 30.0
_CORE_GBPS = 20.0
"""What one CPU core gets from memory, however many channels its socket has: its outstanding misses limit it."""


def cpu_parts(k: KernelQuantities) -> dict[str, Tensor]:
    """(B, K) seconds of each of ``CPU_PARTS``."""
    cycle = 1 / (k.device("clock_mhz") * 1e6)
    cores = parallel_cores(k)
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


def _narrower(k: KernelQuantities) -> Tensor:
    """How many times the vector instructions that the features count, which take vectors to be 64 bytes wide."""
    vectorised = (k["iterations"] - k["scalar_iterations"]).clamp_min(0)
    wanted = vectorised / k["vector_iterations"].clamp_min(1)
    lanes = (k.device("simd_bits") / 32).clamp_min(1)
    return (wanted / lanes).clamp_min(1) / (wanted / _COUNTED_LANES).clamp_min(1)


def parallel_cores(k: KernelQuantities) -> Tensor:
    """(B, K) cores that the parallel loops keep busy."""
    return torch.minimum(k.device("core_count"), k["parallel_extent"].clamp_min(1))


def cores_used(kernel_features: Tensor, device_spec: Tensor, kinds: Tensor, mask: Tensor) -> Tensor:
    """(B,) how many cores a CPU program keeps busy on average, its kernels weighed by their iterations."""
    k = KernelQuantities(kernel_features, device_spec, kinds)
    work = (k["iterations"] + 1) * mask
    return work.sum(1) / (work / parallel_cores(k)).sum(1)


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
