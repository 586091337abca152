"""Programs as flat tensors on one device, and padded batches gathered from them: no workers, no collation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike
from torch import Tensor

from cdmpp.ast.mapped_table import MappedTable
from cdmpp.ast.table import AstTable
from cdmpp.devices import SPEC_FIELDS, Device
from cdmpp.errors import DataError
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH

PAD_EDGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Padded lengths: few distinct shapes, so compiled kernels are reused; above the last, multiples of it."""


class Batch(NamedTuple):
    """A batch is B programs padded to L leaves and K kernels; masks are True where something is."""

    leaves: Tensor
    """(B, L, LEAF_WIDTH) float32; zeros where padded."""
    leaf_mask: Tensor
    """(B, L) bool."""
    leaf_positions: Tensor
    """(B, L) int64, pre-order index of the leaf."""
    leaf_serial_positions: Tensor
    """(B, L) int64, index in the serialised tree with closing markers."""
    leaf_kernels: Tensor
    """(B, L) int64, the kernel (0..K-1) that holds the leaf; 0 where padded."""
    kernels: Tensor
    """(B, K, KERNEL_WIDTH) float32."""
    kernel_mask: Tensor
    """(B, K) bool."""
    kinds: Tensor
    """(B,) int64, 0 cpu, 1 gpu."""
    device_vectors: Tensor
    """(B, V) float32, ``Device.vector()``."""
    device_specs: Tensor
    """(B, len(SPEC_FIELDS)) float32, raw numbers in the units of ``SPEC_FIELDS``; 0 where unknown."""
    log_latency: Tensor
    """(B,) float32, natural log of seconds; NaN where there is no label."""
    weights: Tensor
    """(B,) float32, weight in the loss, mean about 1."""
    rows: Tensor
    """(B,) int64, row of the program in the ``ProgramTensors``."""
    codes: Tensor
    """(B, 1 + CODE_WIDTH) float32: 1 and the code vector, or zeros where nobody compiled the program."""


class LabelledRows(NamedTuple):
    """B programs by their place alone, for what reads ``ProgramTensors`` itself; fields as at ``Batch``."""

    rows: Tensor
    log_latency: Tensor
    weights: Tensor


def spec_array(device: Device) -> np.ndarray:
    """Return the raw datasheet numbers as (len(SPEC_FIELDS),) float32, 0 where unknown."""
    return np.array([device.spec.get(name) or 0.0 for name in SPEC_FIELDS], np.float32)


def _flat_arrays(asts: AstTable) -> list[np.ndarray]:
    """Leaf vectors, leaf places (``ProgramTensors.leaf_ints``) and kernel vectors, each with a last row of zeros."""
    if isinstance(asts, MappedTable):
        return [asts.mapped_leaves, asts.mapped_places, asts.mapped_kernels]
    places = np.stack([asts.leaf_positions, asts.leaf_serial_positions, asts.leaf_kernels], axis=1)
    return [np.pad(array, ((0, 1), (0, 0))) for array in (asts.leaf_features, places, asts.kernel_features)]


def _padded_length(longest: int) -> int:
    place = bisect_left(PAD_EDGES, longest)
    return PAD_EDGES[place] if place < len(PAD_EDGES) else -(-longest // PAD_EDGES[-1]) * PAD_EDGES[-1]


@dataclass(frozen=True)
class ProgramTensors:
    """The programs are flat tensors on one torch device. The last flat row is zeros: padding points at it."""

    leaf_features: Tensor
    leaf_ints: Tensor  # (sum of leaves + 1, 3) int32: position, serial position, kernel
    leaf_starts: Tensor
    leaf_counts: Tensor
    kernel_features: Tensor
    kernel_starts: Tensor
    kernel_counts: Tensor
    kinds: Tensor
    device_index: Tensor
    device_vectors: Tensor  # (number of devices, V)
    device_specs: Tensor
    log_latency: Tensor
    weights: Tensor
    codes: Tensor  # (m, CODE_WIDTH) float32 code vectors; NaN for programs that nobody compiled
    code_rows: Tensor  # (n,) int64, the row of ``codes`` of each program
    host_leaf_counts: np.ndarray  # (n,) on the host: choosing a padded length must not wait for the accelerator
    host_kernel_counts: np.ndarray

    @staticmethod
    def build(
        asts: AstTable,
        devices: Mapping[str, Device],
        device_names: Sequence[str] | np.ndarray,
        latency_s: np.ndarray | None = None,
        weights: np.ndarray | None = None,
        rows: np.ndarray | None = None,
    ) -> ProgramTensors:
        """Build from an AST table. Of a mapped one (``ast.mapped_table``) leaves and kernels stay in its files.

        Args:
            rows: (n,) programs of ``asts``, in that order; None: all. The other (n,) arguments are of these.
            device_names: (n,) keys of ``devices``.
            latency_s: (n,) seconds, or None where only predictions are wanted.
            weights: (n,) loss weights, default 1.

        Raises:
            DataError: lengths differ, a label is not a positive number, or a device is not among ``devices``.
        """
        index = np.arange(len(asts)) if rows is None else np.asarray(rows, np.int64)
        n = len(index)
        if len(device_names) != n or (latency_s is not None and len(latency_s) != n):
            raise DataError(f"{n} ASTs, {len(device_names)} device names and labels must have the same length")
        if latency_s is not None and not (np.isfinite(latency_s).all() and (np.asarray(latency_s) > 0).all()):
            raise DataError("latencies must be positive finite seconds; drop or repair the records that are not")
        order = {name: index for index, name in enumerate(devices)}
        if missing := sorted({str(name) for name in device_names} - set(order)):
            raise DataError(f"programs of {', '.join(missing)} but only {', '.join(order)} described")

        def tensor(values: ArrayLike, kind: DTypeLike = np.int64) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values, kind))

        leaves, places, kernels = _flat_arrays(asts)
        leaf_counts, kernel_counts = np.diff(asts.leaf_offsets)[index], np.diff(asts.kernel_offsets)[index]
        labels = np.full(n, np.nan) if latency_s is None else np.log(np.asarray(latency_s, np.float64))
        no_codes = np.full((1, CODE_WIDTH), np.nan)
        return ProgramTensors(
            leaf_features=tensor(leaves, np.float32),
            leaf_ints=tensor(places, np.int32),
            leaf_starts=tensor(asts.leaf_offsets[index]),
            leaf_counts=tensor(leaf_counts),
            kernel_features=tensor(kernels, np.float32),
            kernel_starts=tensor(asts.kernel_offsets[index]),
            kernel_counts=tensor(kernel_counts),
            kinds=tensor(asts.target_kinds[index]),
            device_index=tensor([order[str(name)] for name in device_names]),
            device_vectors=tensor([d.vector() for d in devices.values()], np.float32),
            device_specs=tensor([spec_array(d) for d in devices.values()], np.float32),
            log_latency=tensor(labels, np.float32),
            weights=tensor(np.ones(n) if weights is None else weights, np.float32),
            codes=tensor(no_codes if asts.codes is None else asts.codes, np.float32),
            code_rows=tensor(np.zeros(n) if asts.codes is None else index),
            host_leaf_counts=leaf_counts,
            host_kernel_counts=kernel_counts,
        )

    def __len__(self) -> int:
        return len(self.host_leaf_counts)

    def without_codes(self) -> ProgramTensors:
        """Drop the code vectors, as if nobody had compiled any program."""
        return replace(
            self, codes=torch.full_like(self.codes[:1], torch.nan), code_rows=torch.zeros_like(self.code_rows)
        )

    def labelled(self, rows: np.ndarray) -> LabelledRows:
        """Return ``rows`` (B,) with their labels and weights."""
        index = torch.from_numpy(np.ascontiguousarray(rows, np.int64)).to(self.weights.device)
        return LabelledRows(index, self.log_latency[index], self.weights[index])

    def codes_of(self, rows: np.ndarray) -> Tensor:
        """Return the code vectors of ``rows`` (n,), (n, code width), NaN where a program has none."""
        index = torch.from_numpy(np.ascontiguousarray(rows, np.int64)).to(self.code_rows.device)
        return self.codes[self.code_rows[index]]

    def coded_kinds(self, rows: np.ndarray) -> list[int]:
        """Return the kinds (0 cpu, 1 gpu) of those of ``rows`` that have a code vector."""
        index = torch.from_numpy(np.ascontiguousarray(rows, np.int64)).to(self.code_rows.device)
        found: set[int] = set()
        for part in index.split(65536):
            coded = ~self.codes[self.code_rows[part], 0].isnan()
            found |= set(self.kinds[part][coded].unique().tolist())
        return sorted(found)

    def to(self, device: torch.device | str) -> ProgramTensors:
        """Move all tensors to another torch device."""
        moved: dict[str, Any] = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)

    def batch(self, rows: np.ndarray) -> Batch:
        """Pad the programs ``rows`` (B,) int64 to a common length."""
        index = torch.from_numpy(np.ascontiguousarray(rows, np.int64)).to(self.kinds.device, non_blocking=True)

        def places(starts: Tensor, counts: Tensor, host_counts: np.ndarray, padding: int) -> tuple[Tensor, Tensor]:
            """Return (B, L) flat rows, ``padding`` where there is none, and their mask."""
            steps = torch.arange(_padded_length(int(host_counts[rows].max())), device=index.device)
            mask = steps < counts[index, None]
            return torch.where(mask, starts[index, None] + steps, padding), mask

        n_leaves, n_kernels = len(self.leaf_features), len(self.kernel_features)
        leaf_rows, leaf_mask = places(self.leaf_starts, self.leaf_counts, self.host_leaf_counts, n_leaves - 1)
        kernel_rows, kernel_mask = places(
            self.kernel_starts, self.kernel_counts, self.host_kernel_counts, n_kernels - 1
        )
        positions, serial_positions, kernels = self.leaf_ints[leaf_rows].long().unbind(-1)
        device, codes = self.device_index[index], self.codes[self.code_rows[index]]
        compiled = ~codes[:, :1].isnan()
        return Batch(
            leaves=self.leaf_features[leaf_rows],
            leaf_mask=leaf_mask,
            leaf_positions=positions,
            leaf_serial_positions=serial_positions,
            leaf_kernels=kernels,
            kernels=self.kernel_features[kernel_rows],
            kernel_mask=kernel_mask,
            kinds=self.kinds[index],
            device_vectors=self.device_vectors[device],
            device_specs=self.device_specs[device],
            log_latency=self.log_latency[index],
            weights=self.weights[index],
            rows=index,
            codes=torch.cat([compiled.to(codes.dtype), codes.where(compiled, 0.0)], dim=1),
        )


class TrainingBatches:
    """One epoch yields random batches, each a tuple of ``Batch`` of like length, so that little is padded.

    Where they are not ``padded``, it is a tuple of ``LabelledRows`` of the same programs in the same order.

    The same (seed, epoch) gives the same batches. With ``share`` (i, n) it is the i-th of n processes that compute a
    batch together: each takes every n-th program, by length.
    """

    def __init__(
        self,
        programs: ProgramTensors,
        rows: np.ndarray,
        batch_size: int,
        seed: int,
        epoch: int,
        length_groups: int = 1,
        share: tuple[int, int] = (0, 1),
        padded: bool = True,
    ):
        self.taken: Callable[[np.ndarray], Batch | LabelledRows] = programs.batch if padded else programs.labelled
        self.programs, self.rows, self.length_groups, self.share = programs, rows, length_groups, share
        self.generator_seed = (seed, epoch)
        # Near-equal batches instead of a small last one: batch statistics never rest on a few programs.
        self.n_batches = max(1, round(len(rows) / batch_size))
        if share[1] > 1 and len(rows) // self.n_batches < share[1]:
            raise DataError(f"{share[1]} processes cannot share {self.n_batches} batches of {len(rows)} programs")

    def __len__(self) -> int:
        return self.n_batches

    def __iter__(self) -> Iterator[tuple[Batch | LabelledRows, ...]]:
        order = np.random.default_rng(self.generator_seed).permutation(self.rows)
        lengths = self.programs.host_leaf_counts + self.programs.host_kernel_counts
        for rows in np.array_split(order, self.n_batches):
            if self.length_groups > 1 or self.share[1] > 1:
                rows = rows[np.argsort(lengths[rows], kind="stable")]
            rows = rows[self.share[0] :: self.share[1]]
            groups = [g for g in np.array_split(rows, min(self.length_groups, len(rows))) if len(g)]
            yield tuple(self.taken(group) for group in groups)


def ordered_batches(programs: ProgramTensors, rows: np.ndarray, max_tokens: int = 16384) -> Iterator[Batch]:
    """Yield each of ``rows`` once, by length; at most ``max_tokens`` padded tokens a batch, or one program."""
    lengths = programs.host_leaf_counts + programs.host_kernel_counts
    rows = np.asarray(rows, np.int64)
    rows = rows[np.argsort(lengths[rows], kind="stable")]
    start = 0
    while start < len(rows):
        end, leaves, kernels = start, 0, 0
        while end < len(rows):
            leaves = max(leaves, _padded_length(int(programs.host_leaf_counts[rows[end]])))
            kernels = max(kernels, _padded_length(int(programs.host_kernel_counts[rows[end]])))
            if end > start and (end + 1 - start) * (leaves + kernels) > max_tokens:
                break
            end += 1
        yield programs.batch(rows[start:end])
        start = end
