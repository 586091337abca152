"""Golden numbers of machine code. ``python -m tests.machine_code.test_golden`` rewrites them after a wanted change.

``code_vectors.npz``: amounts of compiled x86-64 and AArch64 programs, of loops around single instructions and of loops
of random ones. ``kernels.json``: amounts and cycles of the stored listings of SASS, and digests of the steps of warps
that execute random instructions. All of it was equal, bit by bit, to a second
implementation in Python.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdmpp.devices.cores import core_names, get_core
from cdmpp.devices.gpu_core import gpu_core_of
from cdmpp.machine_code.cpu.code_vector import code_vector
from cdmpp.machine_code.gpu.kernel_code import KernelWork, kernel_code
from cdmpp.machine_code.gpu.sass_rows import rows_of
from cdmpp.machine_code.gpu.warp import run_warp
from tests.machine_code.pieces import INSTRUCTIONS, loop_ir, looped, random_piece
from tests.machine_code.sass_pieces import LITERALS, NAMES, ONE_WARP_A_BLOCK, kernel, launch_of, random_kernel

GOLDEN = Path(__file__).parent / "golden"
FIXTURES = Path(__file__).parents[1] / "fixtures"
CORES = [name for name in core_names() if name != "neoverse_n1"]
SEEDS = range(60)


def programs(name: str) -> list[dict[str, Any]]:
    """Compiled programs of a fixture: IR and assembly."""
    return [json.loads(line) for line in lzma.decompress((FIXTURES / f"{name}.jsonl.xz").read_bytes()).splitlines()]


def x86() -> np.ndarray:
    """(n, CODE_WIDTH) of compiled programs, each on another core."""
    cores = ("zen3", *CORES)
    return np.stack([
        code_vector(one["llvm_ir"], one["assembly"], get_core(cores[i % len(cores)]))
        for i, one in enumerate(programs("executed"))
    ])  # fmt: skip


def aarch64() -> np.ndarray:
    """(n, CODE_WIDTH) of compiled programs."""
    return np.stack([
        code_vector(one["llvm_ir"], one["assembly"], get_core("neoverse_n1")) for one in programs("aarch64")
    ])  # fmt: skip


def single() -> np.ndarray:
    """(n, CODE_WIDTH) of loops around an instruction of each kind."""
    return np.stack([
        code_vector(loop_ir(), looped([line, line, "vaddps (%rdi), %ymm1, %ymm3"]), get_core("ice_lake"))
        for line in INSTRUCTIONS
    ])  # fmt: skip


def several() -> np.ndarray:
    """(n, CODE_WIDTH) of loops of random instructions."""
    generator, vectors = random.Random(0), []
    for _ in range(40):
        trips = generator.choice((1, 2, 7, 100_000))
        assembly = looped(random_piece(generator), trips)
        vectors.append(code_vector(loop_ir(trips), assembly, get_core(generator.choice(CORES))))
    return np.stack(vectors)


VECTORS: dict[str, Callable[[], np.ndarray]] = {f.__name__: f for f in (x86, aarch64, single, several)}


def listed(name: str) -> dict[str, Any]:
    """Amounts and cycles of the kernel of a stored listing."""
    made = kernel(name)
    code = asdict(kernel_code(made, launch_of(name), gpu_core_of(80), 108, KernelWork(65536.0, 1e5), LITERALS))
    return {key: code[key] for key in code if key not in ("launch", "occupancy")}


def steps(seed: int) -> str:
    """Digest of what two warps of a random kernel issue."""
    made = random_kernel(seed)
    runs = [run_warp(made, rows_of(made), ONE_WARP_A_BLOCK, block, 0, 1000) for block in (0, 3)]
    return hashlib.sha256(b"".join(run.trace.tobytes() for run in runs)).hexdigest()[:16]


@pytest.mark.parametrize("group", VECTORS)
def test_code_vectors(group: str) -> None:
    with np.load(GOLDEN / "code_vectors.npz") as golden:
        np.testing.assert_array_equal(VECTORS[group](), golden[group])


@pytest.mark.parametrize("name", NAMES)
def test_listed_kernels(name: str) -> None:
    assert listed(name) == json.loads((GOLDEN / "kernels.json").read_text())["listed"][name]


def test_warps_of_random_instructions() -> None:
    assert [steps(seed) for seed in SEEDS] == json.loads((GOLDEN / "kernels.json").read_text())["steps"]


if __name__ == "__main__":
    np.savez_compressed(GOLDEN / "code_vectors.npz", **{name: make() for name, make in VECTORS.items()})
    found = {"listed": {name: listed(name) for name in NAMES}, "steps": [steps(seed) for seed in SEEDS]}
    (GOLDEN / "kernels.json").write_text(json.dumps(found, indent=1) + "\n")
