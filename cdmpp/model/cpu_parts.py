"""Seconds that each resource of a CPU would take for a kernel: pipes, caches, pages. Constants are architectural."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cdmpp.ast.leaf_features import CACHE_KIB, CROWDED_KIB
from cdmpp.model.kernel_quantities import KernelQuantities

_CALL_S = 2e-7
_COUNTED_LANES = 16.0
_PAGE_MISS_CYCLES, _PAGE_WALK_CYCLES = 7.0, 30.0


class _Cpu(KernelQuantities):
    """Quantities from which the seconds of one core follow; (B, K) or (B, 1) each."""

    def __init__(self, features: Tensor, spec: Tensor, kinds: Tensor) -> None:
        super().__init__(features, spec, kinds)
        self.cycle = 1 / (self.device("clock_mhz") * 1e6)
        self.cores = parallel_cores(self)
        self.lanes = (self.device("simd_bits") / 32).clamp_min(1)
        # The features take vectors to be 64 bytes wide: narrower ones are so many times the instructions.
        wanted = (self["iterations"] - self["scalar_iterations"]).clamp_min(0) / self["vector_iterations"].clamp_min(1)
        self.narrower = (wanted / self.lanes).clamp_min(1) / (wanted / _COUNTED_LANES).clamp_min(1)
        vector_share = self["vector_iterations"] / (self["vector_iterations"] + self["scalar_iterations"]).clamp_min(1)
        self.split = 1 + vector_share * (self.narrower - 1)
        # What one core gets from memory, however many channels its socket has: its outstanding misses limit it.
        self.bandwidth = 1e9 * torch.minimum(self.device("bandwidth_gbps") / self.cores, self.device("core_gbps"))
        misses = torch.stack([self[f"miss_bytes_{kib}kib"] for kib in CACHE_KIB], dim=-1)
        crowded = torch.stack([self[f"crowded_miss_bytes_{kib}kib"] for kib in CROWDED_KIB], dim=-1)
        l1_kib = self.device("l1_kb_per_core")
        self.l1_misses, self.l2_misses, self.l3_misses = (
            _miss_at(misses, CACHE_KIB, capacity) for capacity in (l1_kib, self.device("l2_kb"), self.device("l3_kb"))
        )
        self.l1_conflicts = (_miss_at(crowded, CROWDED_KIB, l1_kib) - self.l1_misses).clamp_min(0)


CPU_PARTS: dict[str, tuple[str, Callable[[_Cpu], Tensor]]] = {
    "flops": ("compute", lambda c: c["flops"] / c.flops_per_cycle() * c.cycle),
    "special": ("compute", lambda c: 20 * c["special_iterations"] / c.lanes * c.cycle),
    "integer_division": ("compute", lambda c: 8 * c["intdiv_iterations"] / c.lanes * c.cycle),
    "scalar_issue": ("issue", lambda c: c["scalar_iterations"] / 4 * c.cycle),
    "vector_issue": ("issue", lambda c: c["vector_iterations"] * c.narrower / 4 * c.cycle),
    "loop_issue": ("issue", lambda c: 0.05 * c["iterations"] / 4 * c.cycle),
    "load_ports": ("near_memory", lambda c: c["load_instructions"] * c.split / 2 * c.cycle),
    "store_ports": ("near_memory", lambda c: c["store_instructions"] * c.split * c.cycle),
    "gather": ("near_memory", lambda c: c["gather_iterations"] * c.cycle),
    # LLVM takes vectors whose length is no power of two apart, element by element.
    "odd_vectors": ("near_memory", lambda c: 0.25 * c["odd_vector_iterations"] * c.cycle),
    "l1_misses": ("l1", lambda c: c.l1_misses / c.device("l2_bytes_per_cycle") * c.cycle),
    "l1_conflicts": ("l1", lambda c: c.l1_conflicts / c.device("l2_bytes_per_cycle") * c.cycle),
    "l2_misses": ("l2", lambda c: c.l2_misses / c.device("l3_bytes_per_cycle") * c.cycle),
    "page_misses": ("l2", lambda c: _PAGE_MISS_CYCLES * c["page_misses_64"] * c.cycle),
    "page_walks": ("l2", lambda c: _PAGE_WALK_CYCLES * c["page_misses_1536"] * c.cycle),
    "l3_misses": ("dram", lambda c: c.l3_misses / c.bandwidth),
    "chain": ("latency", lambda c: 4 * c["chain_iterations"] * c.cycle),
    # Scratch memory is fetched from the system and given back in each call.
    "allocation": ("latency", lambda c: 0.01 * c["allocated_bytes"] * c.cycle),
    "call": ("launch", lambda c: torch.full_like(c["flops"], _CALL_S)),
}
"""Name -> the bound that it belongs to (``analytic.BOUNDS``), and its seconds on one core."""
_NOT_SHARED = ("allocation", "call")
"""Parts that only one of the cores takes."""


def cpu_parts(features: Tensor, spec: Tensor, kinds: Tensor) -> Tensor:
    """Return seconds of each part, (B, K, len(CPU_PARTS))."""
    cpu = _Cpu(features, spec, kinds)
    times = {name: seconds(cpu) for name, (_, seconds) in CPU_PARTS.items()}
    return torch.stack([time if name in _NOT_SHARED else time / cpu.cores for name, time in times.items()], dim=-1)


def parallel_cores(k: KernelQuantities) -> Tensor:
    """Count the cores that the parallel loops keep busy, (B, K)."""
    return torch.minimum(k.device("core_count"), k["parallel_extent"].clamp_min(1))


def cores_used(k: KernelQuantities, mask: Tensor) -> Tensor:
    """Count the cores that a CPU program keeps busy on average, its kernels weighed by iterations, (B,)."""
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
