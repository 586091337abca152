"""GpuProgram: what the compiler made of one GPU program, and the file that it is kept in."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
import shutil
import subprocess
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cdmpp.devices.gpu_core import gpu_core_of
from cdmpp.errors import DataError
from cdmpp.machine_code.gpu.cuda import Assembled
from cdmpp.machine_code.gpu.gpu_code_vector import gpu_code_vector
from cdmpp.machine_code.gpu.kernel_code import KernelWork
from cdmpp.machine_code.gpu.launch import Launch
from cdmpp.machine_code.gpu.sass import listed, parse_sass
from cdmpp.platform.cache import keep_bytes, note_use
from cdmpp.platform.paths import cache_root

_VERSION = "2"


class GpuProgram(NamedTuple):
    """A program is its kernels in the order in which they run."""

    arch: int
    """80 of ``sm_80``."""
    launches: dict[str, Launch]
    works: list[KernelWork]
    machine: Assembled

    def vector(self, multiprocessors: int) -> np.ndarray:
        """Return ``gpu_code_vector`` on so many multiprocessors; ``CdmppError`` as there, or no such core is known."""
        return gpu_code_vector(self.launches, self.machine, self.works, gpu_core_of(self.arch), multiprocessors)


def program_path(*texts: str) -> Path:
    """Return the path of the program that ``texts`` say: compiling takes a second, reading again milliseconds."""
    digest = hashlib.sha256("\0".join([_compiler(), *texts]).encode()).hexdigest()[:32]
    return cache_root() / "gpu_programs" / f"v{_VERSION}" / digest[:2] / f"{digest}.json.gz"


def write_program(path: Path, program: GpuProgram) -> None:
    """Write a file that is whole or absent. ``DataError``: it cannot be written."""
    content = {
        "arch": program.arch,
        "launches": {name: [one.grid, one.block, one.dynamic_shared_bytes] for name, one in program.launches.items()},
        "works": [list(work) for work in program.works],
        "listing": listed(program.machine.kernels),
        "literals": {name: base64.b64encode(data).decode() for name, data in program.machine.literals.items()},
    }
    packed = gzip.compress(json.dumps(content).encode(), 5, mtime=0)
    keep_bytes(path, packed)


def read_program(path: Path) -> GpuProgram | None:
    """Return None where there is none, or a damaged one, which is then removed."""
    try:
        content = json.loads(gzip.decompress(path.read_bytes()))
        note_use(path)
        launches = {
            name: Launch(tuple(grid), tuple(block), int(dynamic))
            for name, (grid, block, dynamic) in content["launches"].items()
        }
        literals = {name: base64.b64decode(data) for name, data in content["literals"].items()}
        works = [KernelWork(float(read), float(fma)) for read, fma in content["works"]]
        return GpuProgram(int(content["arch"]), launches, works, Assembled(parse_sass(content["listing"]), literals))
    except FileNotFoundError:
        return None
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError, DataError):
        with suppress(OSError):
            path.unlink()
        return None


@functools.cache
def _compiler() -> str:
    """Versions of the software that, with the program, decide its machine code."""
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for package in ("apache-tvm", "nvidia-cuda-nvrtc"):
        with suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    if shutil.which("nvcc"):
        done = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=False)
        found.append(done.stdout)
    return "\n".join(found)
