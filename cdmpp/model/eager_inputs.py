"""Quantities of a framework operator on a device: how long each resource would need, and how well tiles fill it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from cdmpp.data.batching import Batch
from cdmpp.devices import SPEC_FIELDS
from cdmpp.operators.operator_vector import OPERATOR_FEATURES, OPERATOR_NAMES

TILES = ((32, 32), (64, 64), (128, 64), (128, 128))
"""Rows and columns of a product that one block computes, of the kernels that libraries come with."""
_SIDES = (32, 64, 128)
"""Sides of tiles: the part of the last tile that a product leaves empty is lost."""
_WINOGRAD = (2, 4)
"""Sides of the squares of output that Winograd's algorithm computes at once, from squares two wider."""
_ROW_KERNELS = {"softmax": (2, 512), "layer_norm": (1, 128)}
"""The number of times a kernel of ATen reads its row again, and threads of the block that serves one."""
_IN_REGISTERS = 1024
"""Columns of a softmax up to which a warp keeps the row."""
_TYPICAL = {  # (cpu, gpu)
    "clock_mhz": (2500.0, 1500.0),
    "core_count": (1.0, 80.0),
    "fp32_tflops": (0.1, 15.0),
    "bandwidth_gbps": (20.0, 900.0),
    "core_gbps": (20.0, 20.0),
    "l2_kb": (1024.0, 6144.0),
    "l1_kb_per_core": (32.0, 96.0),
    "max_threads_per_core": (1.0, 2048.0),
    "board_power_w": (250.0, 250.0),
    "process_nm": (12.0, 12.0),
    "warp_size": (32.0, 32.0),
}
"""Typical numbers, taken where a datasheet is silent."""
_BYTES_COLUMNS = [OPERATOR_NAMES.index(name) for name in ("read_bytes", "write_bytes")]
_PLAIN = {feature.name: feature.plain for feature in OPERATOR_FEATURES}
_REFERENCE_NM = 12.0
_PORT_BYTES = 64
"""A multiprocessor of an NVIDIA GPU takes so many from the second-level cache in a clock."""
_OVERFULL = 20.0
"""Log of a cache's fill that leaves nothing in it."""
_MOST_OF_HALVES = 0.945
"""Most of the peak of matrix units that products of halves reach: 295 of 312 TFLOP/s on an A100 that multiplies zeros
(H. He, "Strangely, matrix multiplications on GPUs run faster when given predictable data", 2024)."""
_SMALL_BYTES = 4 << 20
"""A GPU moves fewer bytes in less time than its host dispatches the call, wherever they lie."""


P = ParamSpec("P")
T = TypeVar("T")


def _once(method: Callable[Concatenate[EagerQuantities, P], T]) -> Callable[Concatenate[EagerQuantities, P], T]:
    """Compute a quantity when it is first asked for: others are made of it."""

    @wraps(method)
    def found(self: EagerQuantities, *args: P.args, **options: P.kwargs) -> T:
        key = method.__name__, *args
        if key not in self._known:
            self._known[key] = method(self, *args, **options)
        known: T = self._known[key]
        return known

    return found


class EagerQuantities:
    """Each quantity of B operators has a name and the shape (B,)."""

    def __init__(self, batch: Batch) -> None:
        self.vector = batch.codes[:, 1 : 1 + len(OPERATOR_NAMES)]
        self.spec, self.kinds = batch.device_specs, batch.kinds
        self._known: dict[Any, Any] = {}

    @_once
    def __getitem__(self, name: str) -> Tensor:
        """An amount of the operator in its unit, a whole number: its logarithm has lost the last bits."""
        column = self.vector[:, OPERATOR_NAMES.index(name)]
        return column if _PLAIN[name] else (torch.exp2(column) - 1).round()

    @_once
    def device(self, name: str) -> Tensor:
        """Return a number of the datasheet; a typical value where it is silent."""
        published = self.spec[:, SPEC_FIELDS.index(name)]
        typical = published.new_tensor(_TYPICAL[name])[self.kinds]
        if name == "bandwidth_gbps":  # of a socket, say vendors; what a few of its cores get is measured, if at all
            of_cores = self.device("core_gbps") * self.device("core_count")
            typical = torch.where(self.kinds == 0, of_cores, typical)
        return torch.where(published > 0, published, typical)

    @_once
    def peak(self) -> Tensor:
        """Return operations a second of the units for the operator's type: matrix units where halves have them.

        Where halves have no units that are faster, libraries compute with them in single precision.
        """
        single = self.device("fp32_tflops")
        names = ("fp16_matrix_tflops", "fp32_matrix_tflops", "fp16_tflops")
        published = {name: self.spec[:, SPEC_FIELDS.index(name)].nan_to_num(0.0) for name in names}
        plain_half = torch.maximum(published["fp16_tflops"], single)
        half = torch.where(published["fp16_matrix_tflops"] > 0, published["fp16_matrix_tflops"], plain_half)
        matrix = torch.where(published["fp32_matrix_tflops"] > 0, published["fp32_matrix_tflops"], single)
        products = (self["family_linear"] + self["family_bmm"]) > 0
        full = torch.where(products, matrix, single)
        return 1e12 * torch.where((self["matmul_count"] > 0) & self.halves(), half, full)

    @_once
    def halves(self) -> Tensor:
        """Return True where the elements have less than four bytes."""
        return self["element_bytes"] < 3

    @_once
    def compute_s(self) -> Tensor:
        """Compute the seconds at the peak rate."""
        return self["flops"] / self.peak()

    def least_s(self) -> Tensor:
        """Compute the seconds that every product on a GPU takes at least (``benchmarks.library_peaks``).

        Next to nothing for convolutions, of which Winograd's algorithm makes fewer operations, and on CPUs, whose clock
        may exceed that of their description.
        """
        bound = (self.kinds > 0) & ((self["family_linear"] + self["family_bmm"]) > 0)
        has_units = self.spec[:, SPEC_FIELDS.index("fp16_matrix_tflops")].nan_to_num(0.0) > 0
        most = torch.where(self.halves() & has_units, _MOST_OF_HALVES, 1.0)
        return torch.where(bound, self.compute_s() / most, 0.0).clamp_min(1e-12)

    @_once
    def moved_bytes(self) -> Tensor:
        """Count bytes that are read and written, with what is read again because the caches did not hold it."""
        of_core, of_device = self.rows_in_caches()
        missed = _missed(of_core) * _missed(of_device)
        return self["read_bytes"] * (1 + self._row_kernels(0) * missed) + self["write_bytes"]

    def memory_s(self) -> Tensor:
        """Compute seconds at the memory's full bandwidth."""
        return self.moved_bytes() / (1e9 * self.device("bandwidth_gbps"))

    def cache_s(self) -> Tensor:
        """Compute seconds at full bandwidth of a GPU's second-level cache, which no datasheet has: a port a core."""
        return self.moved_bytes() / (1e6 * _PORT_BYTES * self.device("core_count") * self.device("clock_mhz"))

    def log_fill(self) -> Tensor:
        """Return the natural log of all tensors' bytes over the second-level cache; on CPUs as if it were tiny.

        A call that is repeated finds there what fits.
        """
        filled = (self["read_bytes"] + self["write_bytes"]) / (1024 * self.device("l2_kb"))
        return torch.where(self.kinds > 0, filled.clamp_min(1e-6).log(), _OVERFULL)

    @_once
    def rows_in_caches(self) -> tuple[Tensor, Tensor]:
        """Return rows that blocks work on at once, as shares of both caches; 0: none is reread."""
        blocks = self.device("max_threads_per_core") / self._row_kernels(1).clamp_min(1)
        row_bytes = self["cols"] * self["element_bytes"] * (self._row_kernels(0) > 0)
        of_core = blocks * row_bytes
        l1, l2 = 1024 * self.device("l1_kb_per_core"), 1024 * self.device("l2_kb")
        return of_core / l1, of_core * self.device("core_count") / l2

    def in_cache(self) -> Tensor:
        """Return True where ``fits`` is, on GPUs."""
        return (self.kinds > 0) & fits(self.vector, 1024 * self.device("l2_kb"))

    @_once
    def _row_kernels(self, which: int) -> Tensor:
        """(B,) of ``_ROW_KERNELS``."""
        known = sum(self[f"is_{name}"] * numbers[which] for name, numbers in _ROW_KERNELS.items())
        kept = (self["is_softmax"] > 0) & (self["cols"] <= _IN_REGISTERS)
        return torch.where(kept, 0.0, known)

    def winograd(self, side: int) -> list[Tensor]:
        """Return inputs for a convolution by products over squares of ``side``; zeros where it cannot be."""
        can, products, channels = self["winograd_flag"] > 0, (side + 2) ** 2, self["in_channels"]
        out = (self["matmul_rows"] / self["images"].clamp_min(1)).sqrt().round()
        across = (out / side).ceil()
        squares, cols = self["images"] * across.square(), self["out_channels"]
        work_s = 2 * products * squares * channels * cols / self.peak()
        moved_s = 4 * products * squares * (channels + cols) / (1e9 * self.device("bandwidth_gbps"))
        waves = products * (squares / 128).ceil() * (cols / 128).ceil() / self.device("core_count")
        told = [
            work_s.clamp_min(1e-12).log(),
            moved_s.clamp_min(1e-12).log(),
            torch.log1p(waves),
            waves / waves.ceil().clamp_min(1),
            out / (side * across).clamp_min(1),
            squares / (128 * (squares / 128).ceil()).clamp_min(1),
        ]
        return [torch.where(can, one, 0.0) for one in told]

    def power_s(self) -> Tensor:
        """Compute seconds at 1 TFLOP/s a watt of 12 nm: a board's power limits products before their peak does."""
        faster = torch.where(self.halves(), 4.0, 1.0)
        return self["flops"] / (1e12 * faster * self.device("board_power_w"))

    def log_shrink(self) -> Tensor:
        """Return the natural log of how much finer the process is than 12 nm."""
        return (_REFERENCE_NM / self.device("process_nm")).log()


_OF_OPERATOR = [
    place
    for place, name in enumerate(OPERATOR_NAMES)
    if name not in ("flops", "special", "read_bytes", "write_bytes") and not name.endswith(("_8_flag", "_16_flag"))
]
"""Columns of the operator vector that the correction reads: amounts come as times on the device instead."""
_DEVICE = ("bandwidth_gbps", "core_count", "board_power_w", "l2_kb", "warp_size")
"""The last one tells the vendor, whose libraries are others."""


def fits(vectors: Tensor, cache_bytes: Tensor | float) -> Tensor:
    """Return (n,) True: so many bytes hold all tensors of the operator ``vectors`` (n, *), which are not few."""
    moved = (torch.exp2(vectors[:, _BYTES_COLUMNS]) - 1).sum(1)
    return (moved > _SMALL_BYTES) & (moved < cache_bytes)


def _missed(share: Tensor) -> Tensor:
    """The share of second reads that miss a cache filled to ``share``: none up to half of it, all once it is full."""
    return (2 * share - 1).clamp(0, 1)


def eager_inputs(q: EagerQuantities) -> Tensor:
    """Return what the correction reads, (B, N_INPUTS): few numbers, since one that names a device may be learned."""
    cores, elements = q.device("core_count"), q["write_bytes"] / q["element_bytes"].clamp_min(1)
    compute, memory = q.compute_s().clamp_min(1e-12), q.memory_s().clamp_min(1e-12)
    moved = q["read_bytes"] + q["write_bytes"]
    products = q["matmul_count"] > 0
    columns = [
        compute.log(),
        memory.log(),
        (compute / memory).log(),
        torch.log1p(q["flops"] / moved.clamp_min(1)),
        torch.where(products, 0.0, torch.log1p(moved / (1024 * q.device("l2_kb")))),
        torch.where(products, 0.0, torch.log1p(elements / (cores * q.device("max_threads_per_core")))),
        torch.log1p(q["rows"] / cores),
        *(torch.log1p(share) for share in q.rows_in_caches()),
        q.peak().log(),
        *(q.device(name).log() for name in _DEVICE),
    ]
    for height, width in TILES:
        tiles = (q["matmul_rows"] / height).ceil() * (q["matmul_cols"] / width).ceil()
        waves = q["matmul_count"] * tiles / cores
        columns += [torch.log1p(waves), waves / waves.ceil().clamp_min(1)]
    for side, tile in itertools.product(("matmul_rows", "matmul_cols"), _SIDES):
        columns.append(q[side] / (tile * (q[side] / tile).ceil()).clamp_min(1))
    for square in _WINOGRAD:
        columns += q.winograd(square)
    return torch.cat([q.vector[:, _OF_OPERATOR], torch.stack(columns, dim=1)], dim=1)


N_INPUTS = len(_OF_OPERATOR) + 10 + len(_DEVICE) + 2 * len(TILES) + 2 * len(_SIDES) + 6 * len(_WINOGRAD)
