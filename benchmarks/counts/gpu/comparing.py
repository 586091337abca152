"""A program carried out on its whole grid, and what the product's reader says of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.counts.gpu.interpreter import Carried, carry_out
from benchmarks.counts.gpu.kernels import GpuCase, GpuProgram, arguments, inputs
from benchmarks.counts.gpu.memories import GlobalMemory
from benchmarks.counts.gpu.rows import KINDS, KernelRow, row_of
from cdmpp.devices.gpu_core import gpu_core_of
from cdmpp.errors import DataError
from cdmpp.machine_code.gpu.kernel_code import LIMIT, KernelCode, KernelWork, kernel_code
from cdmpp.machine_code.gpu.launch import Launch
from cdmpp.machine_code.gpu.sass import SassKernel
from cdmpp.machine_code.gpu.sass_rows import rows_of
from cdmpp.machine_code.gpu.warp import run_warp

MULTIPROCESSORS = 108
MOST_WARPS = 96
"""So many warps of a grid are read one by one at most."""
MOST_OFF = 2e-6
"""A result that is farther off is not that of the tensor program."""
_KIND_OF = {
    **{"FFMA": "ffma", "FADD": "fadd", "FMUL": "fmul", "MUFU": "special", "FCHK": "special", "SHFL": "shuffle"},
    **dict.fromkeys(("F2F", "I2F", "F2I", "FRND", "I2FP", "F2FP"), "convert"),
    **{"LDG": "global load", "STG": "global store", "LDS": "shared load", "STS": "shared store"},
    **{"LDL": "local", "STL": "local", "BAR": "barrier", "LDGSTS": "global load"},
    **dict.fromkeys(
        ("BRA", "CALL", "RET", "EXIT", "BSSY", "BSYNC", "BREAK", "WARPSYNC", "NOP", "YIELD", "MEMBAR", "ERRBAR"),
        "control",
    ),
    **dict.fromkeys(("CCTL", "DEPBAR", "LDGDEPBAR"), "control"),
}
"""Opcode -> kind; all others are of whole numbers, bits and predicates."""
_CLASSES = {
    **{"ffma": ("ffma",), "fadd": ("fadd",), "fmul": ("fmul",), "special": ("special",), "convert": ("convert",)},
    "whole": ("float", "multiply", "move", "integer", "uniform", "system"),
    "shuffle": ("shuffle",),
    "global load": ("load_32", "load_64", "load_128", "copy"),
    "global store": ("store_32", "store_64", "store_128"),
    "shared load": ("shared_load_32", "shared_load_64", "shared_load_128"),
    "shared store": ("shared_store_32", "shared_store_64", "shared_store_128"),
    "local": ("local_load", "local_store"),
    "barrier": ("barrier",),
    "control": ("branch", "control", "wait"),
}
"""Kind -> classes of the reader."""


def compared(case: GpuCase, program: GpuProgram) -> Iterator[KernelRow]:
    """Rows of the kernels of a program."""
    try:
        given, wanted = inputs(case.name)
        named = arguments(program.program)
    except Exception as error:  # noqa: BLE001 - TVM raises several types
        yield row_of(case, "main_kernel", 0, 0, error=f"not set up: {str(error).splitlines()[-1][:100]}")
        return
    buffers = dict(zip(named.of_program, [*given, np.zeros_like(wanted)], strict=True)) | named.between
    memory = GlobalMemory(list(buffers.values()))
    where = dict(zip(buffers, memory.addresses, strict=True))
    done: list[tuple[str, Launch, Carried]] = []
    for name, launch in program.source.launches.items():
        literals = program.machine.literals.get(name, b"")
        addresses = [where[one] for one in named.of_kernel[name]]
        try:
            done.append((name, launch, carry_out(program.machine.kernels[name], launch, memory, addresses, literals)))
        except DataError as error:
            yield row_of(case, name, launch.blocks, launch.threads, error=f"not carried out: {error}")
            return
    got = memory.contents(list(buffers).index(named.of_program[-1]), wanted).astype(np.float64)
    off = float(abs(got - wanted).max() / max(abs(wanted.astype(np.float64)).max(), 1e-9))
    for name, launch, carried in done:
        yield _row(case, name, launch, carried, program, off)


def _row(case: GpuCase, name: str, launch: Launch, carried: Carried, program: GpuProgram, off: float) -> KernelRow:
    kernel, literals = program.machine.kernels[name], program.machine.literals.get(name, b"")
    error, counted, alike, worst = "", "", 0.0, ""
    if not off < MOST_OFF:
        error = f"carried out wrongly: the result is {off:.2g} off"
    try:
        code = kernel_code(kernel, launch, gpu_core_of(case.arch), MULTIPROCESSORS, KernelWork(0.0, 0.0), literals)
        counted = _told([said(code)[kind] * launch.blocks * launch.warps for kind in KINDS])
        alike, worst = warps_alike(kernel, launch, carried, literals)
    except DataError as refused:
        error = error or f"not read: {refused}"
    return row_of(
        case, name, launch.blocks, launch.threads, off=float(f"{off:.2g}"),
        executed=_told([did(kernel, carried)[kind] for kind in KINDS]), counted=counted, alike=round(alike, 4),
        worst=worst, error=error,
    )  # fmt: skip


def _told(amounts: list[float]) -> str:
    return " ".join(f"{amount:.10g}" for amount in amounts)


def did(kernel: SassKernel, carried: Carried) -> dict[str, float]:
    """Amounts of a grid by kind."""
    found = dict.fromkeys(KINDS, 0.0)
    for line, issued, taken in zip(kernel.lines, carried.issued.sum(0), carried.taken.sum(0), strict=True):
        kind = _KIND_OF.get(line.opcode, "whole")
        found["instructions"] += issued
        found[kind] += issued
        units = {"global load": "load sectors", "global store": "store sectors"}.get(kind)
        units = "shared passes" if kind.startswith("shared ") else units
        if units:
            found[units] += taken
    return found


def said(code: KernelCode) -> dict[str, float]:
    """Amounts of a mean warp by kind, as the reader says."""
    counts = code.counts
    return {
        "instructions": sum(counts.values()),
        **{kind: sum(counts[name] for name in names) for kind, names in _CLASSES.items()},
        "load sectors": code.load_sectors,
        "store sectors": code.store_sectors,
        "shared passes": code.shared_passes,
    }


def warps_alike(kernel: SassKernel, launch: Launch, carried: Carried, literals: bytes) -> tuple[float, str]:
    """Share of warps that the reader executes as they are, and the instruction that it has most wrongly."""
    rows, count = rows_of(kernel), launch.blocks * launch.warps
    chosen = sorted(set(np.linspace(0, count - 1, min(count, MOST_WARPS)).astype(int).tolist()))
    same, farthest, told = 0, 0, ""
    for warp in chosen:
        run = run_warp(kernel, rows, launch, *divmod(warp, launch.warps), LIMIT, literals)
        issued = np.bincount(run.trace["at"], minlength=len(rows))
        units = np.bincount(run.trace["at"], run.trace["units"], minlength=len(rows))
        sectors = np.array([line.opcode[:3] in ("LDG", "STG", "LDS", "STS") for line in kernel.lines])
        apart = abs(issued - carried.issued[warp])
        same += not apart.any() and bool((units[sectors] == carried.taken[warp][sectors]).all())
        if apart.max() > farthest:
            farthest, at = int(apart.max()), int(apart.argmax())
            told = f"{at} {kernel.lines[at].name} {carried.issued[warp][at]}/{issued[at]}"
    return same / len(chosen), told
