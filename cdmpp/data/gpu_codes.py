"""Code vectors of several GPU programs at once: lowered, printed as CUDA, compiled together, executed. Needs TVM.

What was compiled is kept: a vector that says more, or of another number of multiprocessors, needs no compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from cdmpp.ast.extract import extract
from cdmpp.ast.kernel_features import KERNEL_NAMES
from cdmpp.data.gpu_programs import GpuProgram, program_path, read_program, write_program
from cdmpp.devices.gpu_core import gpu_core_of
from cdmpp.errors import CdmppError, DataError
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.machine_code.gpu.cuda import Assembled, assembled
from cdmpp.machine_code.gpu.cuda_source import CudaSource, cuda_source
from cdmpp.machine_code.gpu.kernel_code import KernelWork
from cdmpp.programs.task import Program

_READ, _FMA = (KERNEL_NAMES.index(name) for name in ("block_read_bytes", "fma_per_thread"))
Texts = Mapping[str, str]
"""``workload``, ``schedule``, ``target`` and ``core`` of a ``derive.Source``; of a GPU the latter is a number."""


def gpu_codes_of(sources: Sequence[Texts], parsed: Callable[[dict[str, Any]], Program]) -> list[np.ndarray | Exception]:
    """Return each one's (CODE_WIDTH,) float32, zero-padded, or why it has none; ``parsed`` makes programs of texts."""
    paths = [program_path(one["workload"], one["schedule"], one["target"]) for one in sources]
    found: dict[int, GpuProgram | Exception] = {}
    missing: dict[int, Program] = {}
    for number, (source, path) in enumerate(zip(sources, paths, strict=True)):
        if (kept := read_program(path)) is not None:
            found[number] = kept
            continue
        try:
            missing[number] = parsed(dict(source))
        except Exception as error:  # noqa: BLE001 - TVM raises several types
            found[number] = error
    for number, one in compiled(missing).items():
        found[number] = one
        if isinstance(one, GpuProgram):
            with suppress(DataError):  # only for speed
                write_program(paths[number], one)
    return [_vector(found[number], int(source["core"])) for number, source in enumerate(sources)]


def _vector(program: GpuProgram | Exception, multiprocessors: int) -> np.ndarray | Exception:
    if isinstance(program, Exception):
        return program
    try:
        vector = program.vector(multiprocessors)
        return np.pad(vector, (0, CODE_WIDTH - len(vector)))
    except CdmppError as error:
        return error


def compiled(programs: Mapping[int, Program]) -> dict[int, GpuProgram | CdmppError]:
    """Compile those of one architecture together; return machine code by number, or why there is none."""
    sources: dict[int, CudaSource] = {}
    found: dict[int, GpuProgram | CdmppError] = {}
    by_arch: dict[int, list[int]] = {}
    for number, program in programs.items():
        try:
            arch = arch_of(program)
            gpu_core_of(arch)
            sources[number] = cuda_source(program)
            by_arch.setdefault(arch, []).append(number)
        except CdmppError as error:
            found[number] = error
    for arch, numbers in by_arch.items():
        machine = _assembled({str(number): sources[number].text for number in numbers}, arch)
        for number in numbers:
            one = machine[str(number)]
            try:
                if isinstance(one, CdmppError):
                    raise one
                found[number] = GpuProgram(arch, sources[number].launches, _works(programs[number]), one)
            except CdmppError as error:
                found[number] = error
    return found


def _works(program: Program) -> list[KernelWork]:
    rows = np.exp2(extract(program.module, program.target).kernel_features.astype(float)) - 1
    return [KernelWork(float(row[_READ]), float(row[_FMA])) for row in rows]


def _assembled(texts: Mapping[str, str], arch: int) -> Mapping[str, Assembled | CdmppError]:
    try:
        return assembled(texts, arch)
    except CdmppError as error:  # no compiler: the same for all
        return dict.fromkeys(texts, error)


def arch_of(program: Program) -> int:
    """Return 80 for ``sm_80``. ``DataError``: the target is not of CUDA."""
    arch = str(program.target.attrs.get("arch", ""))
    if str(program.target.kind.name) != "cuda" or not arch.removeprefix("sm_").isdigit():
        raise DataError(f"GPU code is read of CUDA targets with an arch such as sm_80, not of {program.target}")
    return int(arch.removeprefix("sm_"))
