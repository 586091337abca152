"""Machine code of CUDA sources, several by one call of nvcc."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cdmpp.errors import CdmppError

NVCC_BATCH = 8
"""Programs compiled by one call of nvcc: three times faster than one by one, and a failure costs little."""
NVCC_FLAGS = ("--cubin", "-O3", "--use_fast_math")
"""As TVM compiles where nvcc is at hand."""
_NVCC_LIMIT_S = 300.0


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
        groups.setdefault(_split(source)[0], []).append(name)
    return [group[start : start + size] for group in groups.values() for start in range(0, len(group), size)]


def _split(source: str) -> tuple[str, str]:
    """Includes and helpers of a CUDA source; its kernels."""
    prelude, mark, kernels = source.partition('extern "C"')
    return prelude, mark + kernels


def nvcc(arch: str, sources: Iterable[str], path: Path) -> str:
    """Compile sources of one batch into the cubin ``path``; returns nvcc's complaint, empty where it has none.

    Raises:
        CdmppError: nvcc is not installed.
    """
    command = shutil.which("nvcc")
    if command is None:
        raise CdmppError("nvcc was not found on PATH: install the CUDA toolkit to build a kit for an NVIDIA GPU")
    parts = [_split(source) for source in sources]
    text = path.with_suffix(".batch.cu")
    text.write_text(parts[0][0] + "".join(kernels for _, kernels in parts))
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
