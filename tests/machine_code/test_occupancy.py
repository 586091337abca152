"""Blocks of a kernel that a multiprocessor holds: those of the CUDA occupancy rules, whatever the listing counts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from cdmpp.devices.gpu_core import GpuCore, gpu_core_of
from cdmpp.devices.sheet import Quantity
from cdmpp.machine_code.gpu.cuda import assembled, can_compile_cuda
from cdmpp.machine_code.gpu.launch import Launch
from cdmpp.machine_code.gpu.resident import occupancy
from cdmpp.machine_code.gpu.sass import listed, parse_sass

KB = 1024
LIMITS = {
    # arch: (warps, blocks, shared bytes of a multiprocessor, unit of shared memory, bytes reserved in each block)
    75: (32, 16, 64 * KB, 256, 0),
    80: (64, 32, 164 * KB, 128, KB),
    86: (48, 16, 100 * KB, 128, KB),
    89: (48, 24, 100 * KB, 128, KB),
    90: (64, 32, 228 * KB, 128, KB),
    100: (64, 32, 228 * KB, 128, KB),  # B200
    120: (48, 24, 100 * KB, 128, KB),  # RTX 50
}
"""CUDA C++ Programming Guide, technical specifications by compute capability; units of ``cuda_occupancy.h``."""
DECLARED_LIMIT = 48 * KB
MOST_OF_A_BLOCK = {75: 64 * KB, 80: 163 * KB, 86: 99 * KB, 89: 99 * KB, 90: 227 * KB, 100: 227 * KB, 120: 99 * KB}
"""By the same table: shared memory of one block."""


def core_of(arch: int) -> GpuCore:
    """That which is described; of an architecture that is not, GH100 with the numbers of ``LIMITS``."""
    if arch <= 90:
        return gpu_core_of(arch)
    warps, blocks, shared, unit, reserved = LIMITS[arch]
    names = ("max_warps", "max_blocks", "shared_bytes", "shared_unit", "reserved_shared_bytes")
    own = {
        name: Quantity(value, value, "guide", "described")
        for name, value in zip(names, (warps, blocks, shared, unit, reserved), strict=True)
    }
    other = gpu_core_of(90)
    return replace(other, archs=(arch,), numbers={**other.numbers, **own})


def blocks_by_the_rules(arch: int, threads: int, registers: int, static: int, dynamic: int) -> int:
    """As ``cudaOccMaxActiveBlocksPerMultiprocessor`` counts them, carve-out as large as it can be."""
    most_warps, most_blocks, shared, unit, reserved = LIMITS[arch]
    warps = int(np.ceil(threads / 32))
    by_threads = most_warps // warps
    of_warp = int(np.ceil(registers * 32 / 256)) * 256  # registers: 65,536 in four parts, given to warps in 256
    by_registers = (65536 // 4 // of_warp) * 4 // warps
    of_block = int(np.ceil((static + dynamic + reserved) / unit)) * unit
    by_shared = shared // of_block if of_block else most_blocks
    return min(most_blocks, by_threads, by_registers, by_shared)


def listing(arch: int, registers: int, declared: int) -> str:
    """As ``cuobjdump -sass -res-usage`` prints it (``findings/cuobjdump_shared.sh``)."""
    printed = declared + KB if declared and arch >= 90 else declared
    return (
        f" Function main_kernel:\n  REG:{registers} STACK:0 SHARED:{printed} LOCAL:0 CONSTANT[0]:1 TEXTURE:0\n"
        f"\tcode for sm_{arch}\n\t\tFunction : main_kernel\n"
        "        /*0000*/                   EXIT ;  /* 0x000000000000794d */\n"
        "                                   /* 0x000fea0003800000 */\n"
    )


def sizes_near_limits(arch: int) -> list[int]:
    """Declared bytes at which one more block just fits, and next to these."""
    *_, shared, unit, reserved = LIMITS[arch]
    edges = [shared // blocks // unit * unit - reserved for blocks in range(1, LIMITS[arch][1] + 1)]
    near = {edge + step for edge in edges for step in (-unit, -1, 0, 1, unit)} | {0, 4, 1024, 1028}
    return sorted(size for size in near if 0 <= size <= DECLARED_LIMIT)


@pytest.mark.parametrize("arch", LIMITS)
def test_blocks_are_those_of_the_cuda_rules(arch):
    core, wrong, seen = core_of(arch), [], set()
    for declared, registers in itertools.product(sizes_near_limits(arch), (16, 24, 40, 41, 64, 96, 128, 168, 255)):
        kernel = parse_sass(listing(arch, registers, declared))["main_kernel"]
        assert kernel.shared_bytes == declared
        for threads in (1, 32, 33, 64, 96, 128, 256, 512, 1024):
            expected = blocks_by_the_rules(arch, threads, registers, declared, 0)
            if not expected:
                continue  # such a kernel cannot be launched
            found = occupancy(core, Launch((9, 1, 1), (threads, 1, 1)), kernel.registers, kernel.shared_bytes).blocks
            wrong += [(declared, registers, threads, found, expected)] if found != expected else []
            seen.add(expected)
    assert not wrong and len(seen) > 10


@pytest.mark.parametrize("arch", LIMITS)
def test_shared_memory_that_the_launch_gives_counts_as_well(arch):
    core, unit, reserved = core_of(arch), LIMITS[arch][3], LIMITS[arch][4]
    for blocks, static, step in itertools.product(range(1, 17), (0, 512), (-1, 0, 1)):
        total = LIMITS[arch][2] // blocks // unit * unit - reserved + step
        dynamic = total - static
        if dynamic < 0 or total > MOST_OF_A_BLOCK[arch]:
            continue
        launch = Launch((9, 1, 1), (32, 1, 1), dynamic)
        assert occupancy(core, launch, 32, static).blocks == blocks_by_the_rules(arch, 32, 32, static, dynamic)


def test_one_kernel_that_lost_a_block_on_an_h100():
    kernel = parse_sass(listing(90, 168, 45952 - KB))["main_kernel"]
    launch = Launch((48, 1, 1), (33, 1, 1))
    assert occupancy(gpu_core_of(90), launch, kernel.registers, kernel.shared_bytes).by_shared == 5  # it was 4


@pytest.mark.parametrize("arch", [89, 90, 120])
@pytest.mark.parametrize("declared", [0, 4, 2000])
def test_what_is_listed_again_is_read_as_the_same_kernel(arch, declared):
    kernels = parse_sass(listing(arch, 32, declared))
    assert parse_sass(listed(kernels)) == kernels


@pytest.mark.skipif(not can_compile_cuda(), reason="needs nvcc or NVRTC, and cuobjdump: pip install 'cdmpp[cuda]'")
@pytest.mark.parametrize("arch", [75, 80, 86, 89, 90, 100, 120])
def test_the_compiler_is_read_as_the_source_declares(arch):
    source = """
extern "C" __global__ void __launch_bounds__(64) main_kernel(float* a) {
  __shared__ float kept[500];
  for (int i = threadIdx.x; i < 500; i += 64) kept[i] = a[i];
  __syncthreads();
  a[threadIdx.x] = kept[499 - threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(64) main_kernel_1(float* a) { a[threadIdx.x] *= 2.0f; }
"""
    (found,) = assembled({"one": source}, arch).values()
    assert {name: one.shared_bytes for name, one in found.kernels.items()} == {"main_kernel": 2000, "main_kernel_1": 0}


@pytest.mark.tvm
def test_shared_memory_of_the_launch_is_read_from_the_program(tmp_path):
    tvm = pytest.importorskip("tvm")
    from cdmpp import devices
    from cdmpp.data.gpu_programs import GpuProgram, read_program, write_program
    from cdmpp.machine_code.gpu.cuda import Assembled
    from cdmpp.machine_code.gpu.cuda_source import cuda_source
    from cdmpp.programs.replay import parse_target
    from cdmpp.programs.task import Program

    text = """
@T.prim_func
def main(A: T.Buffer((64, 128), "float32"), B: T.Buffer((64, 128), "float32")):
    T.func_attr({"tir.noalias": True, "global_symbol": "main"})
    for bx in T.thread_binding(64, thread="blockIdx.x"):
        S = T.alloc_buffer((128,), "float32", scope="shared.dyn")
        Q = T.alloc_buffer((64,), "float16", scope="shared.dyn")
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            S[tx] = A[bx, tx]
            if tx < 64:
                Q[tx] = T.float16(1.0)
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            B[bx, tx] = S[127 - tx] + T.Cast("float32", Q[tx % 64])
"""
    from tvm.script import tirx

    function = tvm.script.from_source(text.strip(), {"T": tirx})
    source = cuda_source(Program(tvm.IRModule({"main": function}), parse_target(devices.get("h100").target)))
    assert source.launches == {"main_kernel": Launch((64, 1, 1), (128, 1, 1), 128 * 4 + 64 * 2)}
    program = GpuProgram(90, source.launches, [], Assembled(parse_sass(listing(90, 32, 4)), {}))
    write_program(tmp_path / "kept.json.gz", program)
    assert read_program(tmp_path / "kept.json.gz") == program
