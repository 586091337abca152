"""Programs for another machine: library and CUDA source of one program, cubins of many, expected results."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from cdmpp.errors import CdmppError
from cdmpp.programs.task import Program

NVCC_BATCH = 8
"""Programs compiled by one call of nvcc: three times faster than one by one, and a failure costs little."""
NVCC_FLAGS = ("--cubin", "-O3", "--use_fast_math")
"""As TVM compiles where nvcc is at hand."""
_NVCC_LIMIT_S = 300.0


def compile_program(program: Program, symbol: str, path: Path) -> None:
    """Compile to the shared library ``path`` with the entry ``symbol``; CUDA source lands beside it as ``.cu``.

    The symbol is part of every kernel's name, so that the kernels of several programs fit in one cubin.
    """
    import tvm

    entry = program.module["main"].with_attr("global_symbol", symbol)
    library = tvm.compile(tvm.IRModule({symbol: entry}), target=program.target)
    library.export_library(str(path))
    sources = [module.inspect_source() for module in library.mod.imports if module.kind == "cuda"]
    if len(sources) > 1:
        raise CdmppError(f"{symbol} has {len(sources)} CUDA modules, a kit expects one")
    if sources:
        path.with_suffix(".cu").write_text(sources[0])


def write_expected(workload: str, arguments: Sequence[Sequence[object]], path: Path) -> None:
    """Run the unscheduled task here and keep its last argument: what every schedule of it must compute."""
    import tvm

    from cdmpp.measure.timing import tensors_for
    from cdmpp.programs.replay import parse_workload

    tensors = tensors_for(arguments)
    tvm.compile(parse_workload(workload), target=tvm.target.Target("llvm"))["main"](*tensors)
    np.save(path, tensors[-1].numpy(), allow_pickle=False)


def source_key(source: str) -> str:
    """What the runtime's request for machine code is answered by."""
    return hashlib.sha256(source.encode()).hexdigest()


def build_cubins(arch: str, paths: Sequence[Path], workers: int) -> tuple[dict[str, Path], dict[str, str]]:
    """Compile the CUDA sources at ``paths``, several by one call of nvcc.

    Returns (stem of a source -> cubin that holds its kernels, stem -> why nvcc refuses it).
    """
    by_name = {path.stem: path for path in paths}
    sources = {name: path.read_text() for name, path in by_name.items()}
    cubins: dict[str, Path] = {}
    refused: dict[str, str] = {}

    def build(names: Sequence[str]) -> None:
        cubin = by_name[names[0]].with_suffix(".cubin")
        complaint = nvcc(arch, [sources[name] for name in names], cubin)
        if not complaint:
            cubins.update(dict.fromkeys(names, cubin))
        elif len(names) == 1:
            refused[names[0]] = complaint
        else:  # one of them spoils the batch
            for name in names:
                build([name])

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(build, batches(sources)))
    return cubins, refused


def batches(sources: Mapping[str, str], size: int = NVCC_BATCH) -> list[list[str]]:
    """Names of programs whose sources may be one file: those with the same text before their first kernel."""
    groups: dict[str, list[str]] = {}
    for name, source in sources.items():
        groups.setdefault(prelude(source), []).append(name)
    return [group[start : start + size] for group in groups.values() for start in range(0, len(group), size)]


def prelude(source: str) -> str:
    """Includes and helpers of a CUDA source."""
    return source.split('extern "C"', 1)[0]


def nvcc(arch: str, sources: Iterable[str], path: Path) -> str:
    """Compile sources of one batch into the cubin ``path``; returns nvcc's complaint, empty where it has none.

    Raises:
        CdmppError: nvcc is not installed.
    """
    command = shutil.which("nvcc")
    if command is None:
        raise CdmppError("nvcc was not found on PATH: install the CUDA toolkit to build a kit for an NVIDIA GPU")
    first, *rest = sources
    text = path.with_suffix(".batch.cu")
    text.write_text(first + "".join(source[len(prelude(source)) :] for source in rest))
    try:
        done = subprocess.run(
            [command, *NVCC_FLAGS, f"-arch={arch}", "-o", str(path), str(text)],
            capture_output=True,
            text=True,
            timeout=_NVCC_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"nvcc took longer than {_NVCC_LIMIT_S:g} s"
    finally:
        text.unlink(missing_ok=True)
    return "" if done.returncode == 0 else done.stderr[-500:] or f"nvcc exit status {done.returncode}"
