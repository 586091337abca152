"""KernelQuantities: what the features of kernels say in physical units, and the device numbers that go with them."""

from __future__ import annotations

import torch
from torch import Tensor

from cdmpp.ast.kernel_features import KERNEL_FEATURES
from cdmpp.devices import SPEC_FIELDS

_TYPICAL = {  # (cpu, gpu) values where the datasheet is silent; of CPUs it always tells the clock
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
    "issue_width": (5.0, 5.0),
    "gather_cycles_per_lane": (1.0, 1.0),
    "add_latency_cycles": (4.0, 4.0),
    "l2_bytes_per_cycle": (32.0, 32.0),
    "l3_bytes_per_cycle": (12.0, 12.0),
    "core_gbps": (20.0, 20.0),
}
_COLUMNS = {feature.name: (place, feature.plain) for place, feature in enumerate(KERNEL_FEATURES)}


class KernelQuantities:
    """Each physical quantity of (B, K) kernels has a name; device numbers are (B, 1)."""

    def __init__(self, features: Tensor, spec: Tensor, kinds: Tensor) -> None:
        self.features, self.spec, self.kinds = features, spec, kinds

    def __getitem__(self, name: str) -> Tensor:
        place, plain = _COLUMNS[name]
        column = self.features[..., place]
        return column if plain else torch.exp2(column) - 1

    def device(self, name: str) -> Tensor:
        """Return (B, 1) of the datasheet, a typical value where it is silent."""
        published = self.spec[:, SPEC_FIELDS.index(name)]
        typical = torch.tensor(_TYPICAL[name], device=published.device, dtype=published.dtype)[self.kinds]
        return torch.where(published > 0, published, typical)[:, None]

    def flops_per_cycle(self) -> Tensor:
        """Count multiply and add apart, of one core; by lanes and units where no rate is published."""
        cycles = self.device("clock_mhz") * 1e6 * self.device("core_count")
        published = self.spec[:, SPEC_FIELDS.index("fp32_tflops")][:, None]
        lanes = torch.where((self.kinds == 0)[:, None], (self.device("simd_bits") / 32).clamp_min(1), 1.0)
        units = 2 * lanes * self.device("fma_units_per_core")
        return torch.where(published > 0, published * 1e12 / cycles, units)
