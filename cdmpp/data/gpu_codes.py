"""Code vectors of several GPU programs at once: lowered, printed as CUDA, compiled together, executed. Needs TVM."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cdmpp.ast.extract import extract
from cdmpp.ast.kernel_features import KERNEL_NAMES
from cdmpp.errors import CdmppError, DataError
from cdmpp.machine_code.code_features import CODE_WIDTH
from cdmpp.machine_code.cuda import Assembled, assembled
from cdmpp.machine_code.cuda_source import CudaSource, cuda_source
from cdmpp.machine_code.gpu_code_vector import gpu_code_vector
from cdmpp.machine_code.gpu_core import gpu_core_of
from cdmpp.machine_code.kernel_code import KernelWork
from cdmpp.programs.task import Program

_READ, _FMA = (KERNEL_NAMES.index(name) for name in ("block_read_bytes", "fma_per_thread"))


def gpu_codes_of(programs: Mapping[int, tuple[Program, int]]) -> dict[int, np.ndarray | CdmppError]:
    """(CODE_WIDTH,) float32 of each, filled up with zeros, or why it has none.

    ``programs``: by number, each with how many multiprocessors its device has.
    """
    sources: dict[int, CudaSource] = {}
    found: dict[int, np.ndarray | CdmppError] = {}
    by_arch: dict[int, list[int]] = {}
    for number, (program, _) in programs.items():
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
            program, multiprocessors = programs[number]
            try:
                one = machine[str(number)]
                if isinstance(one, CdmppError):
                    raise one
                rows = np.exp2(extract(program.module, program.target).kernel_features.astype(float)) - 1
                works = [KernelWork(float(row[_READ]), float(row[_FMA])) for row in rows]
                launches = sources[number].launches
                vector = gpu_code_vector(launches, one, works, gpu_core_of(arch), multiprocessors)
                found[number] = np.pad(vector, (0, CODE_WIDTH - len(vector)))
            except CdmppError as error:
                found[number] = error
    return found


def _assembled(texts: Mapping[str, str], arch: int) -> Mapping[str, Assembled | CdmppError]:
    try:
        return assembled(texts, arch)
    except CdmppError as error:  # no compiler: the same for all
        return dict.fromkeys(texts, error)


def arch_of(program: Program) -> int:
    """80 of ``sm_80``. ``DataError``: the target is not of CUDA."""
    arch = str(program.target.attrs.get("arch", ""))
    if str(program.target.kind.name) != "cuda" or not arch.removeprefix("sm_").isdigit():
        raise DataError(f"GPU code is read of CUDA targets with an arch such as sm_80, not of {program.target}")
    return int(arch.removeprefix("sm_"))
