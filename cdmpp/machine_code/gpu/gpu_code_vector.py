"""Code vector of a GPU program: its kernels executed and timed, added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cdmpp.devices.gpu_core import GpuCore
from cdmpp.errors import DataError
from cdmpp.features import stored
from cdmpp.machine_code.gpu.cuda import Assembled
from cdmpp.machine_code.gpu.gpu_code_features import GPU_CODE_FEATURES
from cdmpp.machine_code.gpu.kernel_code import KernelCode, KernelWork, kernel_code
from cdmpp.machine_code.gpu.launch import Launch


def gpu_code_vector(
    launches: Mapping[str, Launch],
    machine: Assembled,
    works: Sequence[KernelWork],
    core: GpuCore,
    multiprocessors: int,
) -> np.ndarray:
    """Return (len(GPU_CODE_FEATURES),) float32 of one program on ``multiprocessors`` of ``core``.

    ``launches`` and ``works`` are of its kernels in the order in which they run.

    Raises:
        DataError: machine code that is not known, an address or branch that depends on data, or other kernels than
            those of the tensor program.
    """
    if len(works) != len(launches) or set(launches) != set(machine.kernels):
        raise DataError(
            f"the compiler made kernels {sorted(machine.kernels)} where the program has {len(works)} and launches "
            f"{list(launches)}"
        )
    codes = [
        kernel_code(machine.kernels[name], launch, core, multiprocessors, work, machine.literals.get(name, b""))
        for (name, launch), work in zip(launches.items(), works, strict=True)
    ]
    return np.array(stored(GPU_CODE_FEATURES, _amounts(codes, multiprocessors)), np.float32)


def _amounts(codes: Sequence[KernelCode], multiprocessors: int) -> dict[str, float]:
    amounts = {"kernels": float(len(codes))}
    for code in codes:
        warps = -(-code.launch.blocks // multiprocessors) * code.launch.warps
        for name, count in code.counts.items():
            amounts[f"n_{name}"] = amounts.get(f"n_{name}", 0.0) + warps * count
        for name, cycles in code.cycles.items():
            amounts[f"cycles_{name}"] = amounts.get(f"cycles_{name}", 0.0) + cycles
    longest = max(codes, key=lambda code: code.cycles["simulated"])
    return amounts | {f"longest_{name}": value for name, value in _of_one(longest, amounts, multiprocessors).items()}


def _of_one(code: KernelCode, amounts: Mapping[str, float], multiprocessors: int) -> dict[str, float]:
    blocks = -(-code.launch.blocks // multiprocessors)
    live = min(blocks, code.occupancy.blocks)
    return {
        "share": code.cycles["simulated"] / max(amounts["cycles_simulated"], 1.0),
        "registers": float(code.registers),
        "stack_bytes": float(code.stack_bytes),
        "shared_bytes": float(code.shared_bytes),
        "threads": float(code.launch.threads),
        "blocks": float(code.launch.blocks),
        "resident_blocks": float(code.occupancy.blocks),
        "live_warps": float(live * code.launch.warps),
        "rounds": blocks / live,
        "instructions": float(code.instructions),
        "active_share": code.active_share,
        "ffma_share": code.counts["ffma"] / max(sum(code.counts.values()), 1.0),
        "missing_share": code.missing_share,
        "stopped_flag": float(code.capped),
    }
