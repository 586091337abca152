"""``benchmarks.counts.gpu``: kernels carried out give what numpy gives, and a reader that counts otherwise is seen."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.counts.gpu.comparing import did, warps_alike
from benchmarks.counts.gpu.interpreter import Carried, carry_out
from benchmarks.counts.gpu.memories import GlobalMemory, different, passes
from benchmarks.counts.gpu.ncu import profiled
from cdmpp.errors import DataError
from cdmpp.machine_code.gpu.launch import Launch
from cdmpp.machine_code.gpu.sass import SassKernel, parse_sass
from tests.machine_code.sass_pieces import written

LISTINGS = Path(__file__).parent / "sass_small"
ONE_WARP = Launch((1, 1, 1), (32, 1, 1))


def small(name: str) -> SassKernel:
    """A kernel of TVM by nvcc 13.0, stored as a listing."""
    (found,) = parse_sass(gzip.decompress((LISTINGS / f"{name}.txt.gz").read_bytes()).decode()).values()
    return found


def carried(kernel: SassKernel, launch: Launch, out: np.ndarray, *given: np.ndarray) -> tuple[np.ndarray, Carried]:
    """The result of a kernel whose first argument is its result."""
    memory = GlobalMemory([out, *given])
    done = carry_out(kernel, launch, memory, memory.addresses)
    return memory.contents(0, out), done


def softmax() -> tuple[SassKernel, Launch, np.ndarray, np.ndarray, Carried]:
    x = np.random.default_rng(0).normal(size=(13, 101)).astype(np.float32)
    kernel, launch = small("softmax_13x101_sm_80"), Launch((13, 1, 1), (256, 1, 1))
    got, done = carried(kernel, launch, np.zeros_like(x), x)
    return kernel, launch, x, got, done


def test_softmax_by_warps_that_shuffle_and_wait_is_that_of_numpy() -> None:
    kernel, launch, x, got, done = softmax()
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=2e-6)
    amounts = did(kernel, done)
    assert amounts["instructions"] == done.issued.sum() > 0
    parts = [range(start, min(101, start + 32)) for start in range(0, 101, 32)]
    stored_sectors = [len({4 * (101 * row + c) // 32 for c in part}) for row in range(13) for part in parts]
    assert amounts["store sectors"] == sum(stored_sectors)
    # Two reductions of a block of 8 warps: each has its barriers for every warp.
    assert amounts["barrier"] % (13 * 8) == 0


def test_a_product_of_a_row_and_a_matrix_on_hopper_is_that_of_numpy() -> None:
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(1, 256)).astype(np.float32), generator.normal(size=(256, 128)).astype(np.float32)
    memory = GlobalMemory([a, b, out := np.zeros((1, 128), np.float32)])
    kernel, launch = small("matvec_256x128_sm_90"), Launch((8, 1, 1), (16, 16, 1))
    done = carry_out(kernel, launch, memory, memory.addresses)
    np.testing.assert_allclose(memory.contents(2, out), a @ b, rtol=1e-5, atol=1e-5)
    assert did(kernel, done)["ffma"] == 8 * 8 * 256 // 16  # warps, sums of a thread


def test_the_reader_executes_single_warps_as_they_are_executed() -> None:
    x = np.random.default_rng(0).normal(size=(37, 53)).astype(np.float32)
    kernel, launch = small("rows_37x53_sm_80"), Launch((37, 1, 1), (64, 1, 1))
    memory = GlobalMemory([x, out := np.zeros(37, np.float32)])
    done = carry_out(kernel, launch, memory, memory.addresses)
    got = memory.contents(1, out)
    np.testing.assert_allclose(got, x.sum(1), rtol=1e-5, atol=1e-5)
    assert warps_alike(kernel, launch, done, b"") == (1.0, "")
    wrong = replace(done, issued=done.issued + (np.arange(len(kernel.lines)) == 7))
    assert warps_alike(kernel, launch, wrong, b"")[0] == 0.0


def stored(*texts: str, launch: Launch = ONE_WARP) -> tuple[np.ndarray, Carried]:
    """What each lane leaves in R5."""
    ends = (
        "S2R R0, SR_TID.X",
        "IMAD.WIDE R2, R0, 0x4, c[0x0][0x160]",
        "STG.E [R2.64], R5",
        "EXIT",
    )
    return carried(written(*texts, *ends), launch, np.zeros(launch.threads, np.uint32))


def test_lanes_part_and_meet_where_the_barrier_of_convergence_says() -> None:
    got, done = stored(
        "S2R R0, SR_TID.X",
        "ISETP.LT.U32.AND P0, PT, R0, 0x5, PT",
        "MOV R5, 0x1",
        "BSSY B0, 0x70",
        "@P0@ BRA 0x60",
        "IADD3 R5, R5, 0x9, RZ",
        "IADD3 R5, R5, R0, RZ",
        "BSYNC B0",
    )
    assert got.tolist() == [1 + lane + 9 * (lane >= 5) for lane in range(32)]
    # Each path issues the sum and the barrier; behind it the warp is whole again.
    assert done.issued[0].tolist() == [1, 1, 1, 1, 1, 1, 2, 2, 1, 1, 1, 1]


def test_a_loop_that_lanes_leave_one_by_one() -> None:
    got, done = stored(
        "S2R R0, SR_TID.X",
        "MOV R5, RZ",
        "BSSY B0, 0x60",
        "IADD3 R5, R5, 0x1, RZ",
        "ISETP.LE.U32.AND P0, PT, R5, R0, PT",
        "@P0@ BRA 0x30",
        "BSYNC B0",
    )
    assert got.tolist() == [lane + 1 for lane in range(32)]
    assert done.issued[0][3:7].tolist() == [32, 32, 32, 32] and done.lanes[0][3] == sum(range(1, 33))


def test_values_of_other_lanes_and_of_the_whole_warp() -> None:
    got, _ = stored("S2R R0, SR_LANEID", "SHFL.DOWN PT, R5, R0, 0x4, 0x1f")
    assert got.tolist() == [min(lane + 4, 31) if lane + 4 < 32 else lane for lane in range(32)]
    got, _ = stored("S2R R0, SR_LANEID", "ISETP.GT.U32.AND P1, PT, R0, 0x1b, PT", "VOTE.ANY R5, PT, P1")
    assert set(got.tolist()) == {0xF0000000}


def test_shared_memory_and_a_barrier_of_two_warps() -> None:
    launch = Launch((1, 1, 1), (64, 1, 1), 256)
    got, done = stored(
        "S2R R0, SR_TID.X",
        "SHF.L.U32 R1, R0, 0x2, RZ",
        "STS [R1], R0",
        "BAR.SYNC 0x0",
        "LOP3.LUT R4, R1, 0xfc, RZ, 0x3c, !PT",
        "LDS R5, [R4]",
        launch=launch,
    )
    assert got.tolist() == list(range(63, -1, -1))
    assert done.issued[:, 3].tolist() == [1, 1] and done.taken[:, 5].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("HMMA.16816.F32 R4, R4, R8, R12", "HMMA"),
        ("IADD3.WRONG R5, R5, R5, R5", "WRONG"),
        ("S2R R5, SR_CLOCKLO", "SR_CLOCKLO"),
        ("MOV R5, c[0x0][0x700]", r"c\[0x0\]\[0x700\]"),
        ("LDG.E R5, [R8.64]", "outside"),
        ("BRA 0x0", "steps"),
    ],
)
def test_what_is_not_known_is_named(text: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.counts.gpu.interpreter.MOST_STEPS", 50)
    with pytest.raises(DataError, match=told):
        stored(text)


@pytest.mark.parametrize(
    ("width", "apart", "expected"), [(4, 4, 1), (4, 8, 2), (4, 128, 32), (4, 0, 1), (8, 8, 2), (16, 16, 4), (16, 0, 2)]
)
def test_passes_and_sectors_of_a_request(width: int, apart: int, expected: int) -> None:
    address, everyone = (np.arange(32) * apart)[None, :], np.ones((1, 32), bool)
    # Of 128 bits half a warp at most is served at once.
    assert passes(address, everyone, width).tolist() == [expected]
    assert different(address, everyone, width, 32).tolist() == [len({lane * apart // 32 for lane in range(32)})]
    assert passes(address, ~everyone, width).tolist() == [0]


def test_metrics_of_the_profiler_are_read_by_launch() -> None:
    text = (
        '==PROF== of something\n"ID","Kernel Name","smsp__inst_executed.sum"\n"","","inst"\n"0","main_kernel","1,234"\n'
    )
    assert profiled(text) == [{"smsp__inst_executed.sum": 1234.0}]
