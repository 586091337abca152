"""Quantities of a library operator on a device: how long each resource would need, and how well tiles fill it."""

from __future__ import annotations

import torch
from torch import Tensor

from cdmpp.data.batching import Batch
from cdmpp.devices import SPEC_FIELDS
from cdmpp.operators.operator_vector import OPERATOR_FEATURES, OPERATOR_NAMES

TILES = ((32, 32), (64, 64), (128, 64), (128, 128), (256, 128))
"""Rows and columns of a product that one block computes, of the kernels that libraries come with."""
_TYPICAL = {
    "clock_mhz": 1500.0,
    "core_count": 80.0,
    "fp32_tflops": 15.0,
    "bandwidth_gbps": 900.0,
    "l2_kb": 6144.0,
    "max_threads_per_core": 2048.0,
    "board_power_w": 250.0,
    "process_nm": 12.0,
}
"""Where a datasheet is silent."""
_PLAIN = {feature.name: feature.plain for feature in OPERATOR_FEATURES}
_REFERENCE_NM = 12.0


class LibraryQuantities:
    """Of B operators, by name; all (B,)."""

    def __init__(self, batch: Batch) -> None:
        self.vector = batch.codes[:, 1 : 1 + len(OPERATOR_NAMES)]
        self.spec = batch.device_specs

    def __getitem__(self, name: str) -> Tensor:
        """An amount of the operator in its unit."""
        column = self.vector[:, OPERATOR_NAMES.index(name)]
        return column if _PLAIN[name] else torch.exp2(column) - 1

    def device(self, name: str) -> Tensor:
        """Of the datasheet, a typical value where it is silent."""
        published = self.spec[:, SPEC_FIELDS.index(name)]
        return torch.where(published > 0, published, torch.full_like(published, _TYPICAL[name]))

    def peak(self) -> Tensor:
        """Operations a second of the units that serve the operator's type: matrix units where halves have them."""
        single = self.device("fp32_tflops")
        published = {
            name: self.spec[:, SPEC_FIELDS.index(name)] for name in ("fp16_matrix_tflops", "fp32_matrix_tflops")
        }
        half = torch.where(published["fp16_matrix_tflops"] > 0, published["fp16_matrix_tflops"], 2 * single)
        matrix = torch.where(published["fp32_matrix_tflops"] > 0, published["fp32_matrix_tflops"], single)
        products = (self["family_linear"] + self["family_bmm"]) > 0
        full = torch.where(products, matrix, single)
        return 1e12 * torch.where(products & (self["element_bytes"] < 3), half, full)

    def compute_s(self) -> Tensor:
        """At the peak rate."""
        return self["flops"] / self.peak()

    def memory_s(self) -> Tensor:
        """At full bandwidth."""
        return (self["read_bytes"] + self["write_bytes"]) / (1e9 * self.device("bandwidth_gbps"))

    def power_s(self) -> Tensor:
        """At one TFLOP/s a watt of a 12 nm process: what a board may burn limits products before their peak does."""
        halves = torch.where(self["element_bytes"] < 3, 4.0, 1.0)
        return self["flops"] / (1e12 * halves * self.device("board_power_w"))

    def log_shrink(self) -> Tensor:
        """Natural log of how much finer the process is than 12 nm."""
        return (_REFERENCE_NM / self.device("process_nm")).log()


def library_inputs(batch: Batch) -> Tensor:
    """(B, N_INPUTS) what the correction reads: amounts, and ratios to what the device can do."""
    q = LibraryQuantities(batch)
    cores, elements = q.device("core_count"), q["write_bytes"] / q["element_bytes"].clamp_min(1)
    compute, memory = q.compute_s().clamp_min(1e-12), q.memory_s().clamp_min(1e-12)
    columns = [
        compute.log(),
        memory.log(),
        (compute / memory).log(),
        torch.log1p((q["read_bytes"] + q["write_bytes"]) / (1024 * q.device("l2_kb"))),
        torch.log1p(elements / (cores * q.device("max_threads_per_core"))),
        torch.log1p(q["rows"] / cores),
        (q.peak() / (1e9 * q.device("bandwidth_gbps"))).log(),
        (q.device("fp32_tflops") / q.device("board_power_w")).log(),
        q.log_shrink(),
        q.device("clock_mhz").log(),
        cores.log(),
        torch.log1p(q.device("l2_kb") / cores),
    ]
    products = q["matmul_count"] > 0
    for height, width in TILES:
        down, across = (q["matmul_rows"] / height).ceil().clamp_min(1), (q["matmul_cols"] / width).ceil().clamp_min(1)
        tiles = q["matmul_count"].clamp_min(1) * down * across
        waves = tiles / cores
        padding = (q["matmul_rows"] * q["matmul_cols"]).clamp_min(1) / (down * across * height * width)
        for column in (torch.log1p(waves), waves / waves.ceil(), padding.clamp(0, 1)):
            columns.append(torch.where(products, column, 0.0))
    return torch.cat([q.vector, torch.stack(columns, dim=1)], dim=1)


N_INPUTS = len(OPERATOR_NAMES) + 12 + 3 * len(TILES)
