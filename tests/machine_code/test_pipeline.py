"""Cycles of code whose bound is known from the tables."""

from __future__ import annotations

import math

import pytest

from cdmpp.devices.cores import Core, get_core
from tests.machine_code.decoding import Steady, cost

ICE_LAKE = get_core("ice_lake")


def steady(*lines: str, trips: float = math.inf, core: Core = ICE_LAKE) -> Steady:
    return cost(core, lines, trips)


def cycles(*lines: str, trips: float = math.inf, core: str = "ice_lake") -> float:
    return steady(*lines, trips=trips, core=get_core(core)).cycles


def test_a_chain_takes_its_latency() -> None:
    assert cycles("vfmadd231ps %ymm1, %ymm2, %ymm0") == pytest.approx(4)
    addition = ("vaddss (%rdi,%rcx,4), %xmm0, %xmm0", "addq $1, %rcx")
    latencies = {name: cycles(*addition, core=name) for name in ("ice_lake", "golden_cove", "haswell", "zen4")}
    assert latencies == pytest.approx({"ice_lake": 4, "golden_cove": 2, "haswell": 3, "zen4": 3})


def test_wide_registers_take_two_cycles_where_units_are_narrow() -> None:
    lines = [f"vfmadd231ps %zmm30, %zmm31, %zmm{i}" for i in range(12)]
    assert cycles(*lines, core="zen4") == pytest.approx(12, rel=0.1)
    assert cycles(*lines, core="zen5") == pytest.approx(6, rel=0.1)
    loads = [f"vmovups {64 * i}(%rdi), %zmm{i}" for i in range(8)]
    assert cycles(*loads, core="zen4") == pytest.approx(8, rel=0.1)
    assert cycles(*loads, core="zen5") == pytest.approx(4, rel=0.1)


def test_independent_work_is_bound_by_ports() -> None:
    lines = [f"vfmadd231ps %ymm14, %ymm15, %ymm{i}" for i in range(12)]
    assert cycles(*lines) == pytest.approx(6, rel=0.1)
    stores = [f"vmovups %zmm1, {64 * i}(%rdi)" for i in range(8)]
    assert cycles(*stores) == pytest.approx(8, rel=0.1)
    assert cycles(*[line.replace("zmm", "ymm") for line in stores]) == pytest.approx(4, rel=0.1)
    shuffles = [f"vpermps %zmm14, %zmm15, %zmm{i}" for i in range(8)]
    assert cycles(*shuffles) == pytest.approx(8, rel=0.1)
    assert cycles(*[f"leaq 8(%rax), %r{i}" for i in range(8, 16)]) == pytest.approx(2, rel=0.1)


def test_width_bounds_what_needs_no_port() -> None:
    assert cycles(*[f"movq %rax, %r{i}" for i in range(8, 13)] * 4) == pytest.approx(4, rel=0.1)


def test_a_sum_in_memory_waits_for_its_store() -> None:
    lines = ("vmovss 16(%rdi), %xmm0", "vaddss %xmm1, %xmm0, %xmm0", "vmovss %xmm0, 16(%rdi)")
    assert cycles(*lines) == pytest.approx(4 + 5, abs=1)
    # The next element each time: nothing to wait for.
    assert cycles(*lines, "addq $4, %rdi") < 4


def test_a_wide_load_of_narrow_stores_is_blocked() -> None:
    store = [f"vmovss %xmm{i}, {4 * i}(%rsp)" for i in range(4)]
    wide, narrow = steady(*store, "vmovups (%rsp), %xmm5"), steady(*store, "vmovss 4(%rsp), %xmm5")
    assert wide.blocked_loads == pytest.approx(1)
    assert narrow.blocked_loads == 0


def test_stores_a_page_apart_hold_up_loads() -> None:
    def sums(stride: int) -> list[str]:
        return [
            line
            for i in range(8)
            for line in (
                f"vmovss {stride * i}(%rdi), %xmm0",
                "vaddss %xmm1, %xmm0, %xmm0",
                f"vmovss %xmm0, {stride * i}(%rdi)",
            )
        ]

    apart, near = (steady(*sums(stride)) for stride in (4096, 512))
    assert apart.aliased_loads == pytest.approx(8, abs=0.1) and near.aliased_loads == 0
    assert apart.cycles > 7 * 14 > 3 * near.cycles


def test_loops_that_are_entered_anew_overlap() -> None:
    line = "vfmadd231ps %ymm1, %ymm2, %ymm0"
    assert cycles(line, trips=8) < 0.3 * cycles(line)
    assert cycles(line, trips=10_000) == pytest.approx(cycles(line))
    assert cycles(line, trips=1) == pytest.approx(0.5, rel=0.1)


def test_a_long_piece_goes_on_as_it_began() -> None:
    lines = [f"vfmadd231ps %ymm14, %ymm15, %ymm{i % 12}" for i in range(3000)]
    assert cycles(*lines * 2) == pytest.approx(2 * cycles(*lines), rel=0.01)


def test_divisions_keep_their_port() -> None:
    assert cycles("vdivps %zmm1, %zmm2, %zmm3") == pytest.approx(10, rel=0.1)


def test_what_one_register_stores_another_loads() -> None:
    """The second register is the first one and a constant: only sums of registers tell that the places are the same."""
    lines = ("leaq 64(%rdi), %rsi", "vmovss -48(%rsi), %xmm0", "vaddss %xmm1, %xmm0, %xmm0", "vmovss %xmm0, 16(%rdi)")
    assert cycles(*lines) == pytest.approx(4 + 5, abs=1)
    assert cycles(lines[0], "vmovss -44(%rsi), %xmm0", *lines[2:]) < 4


def test_a_masked_store_keeps_its_loads_waiting() -> None:
    lines = ["vmovups (%rdi), %zmm0", "vaddps %zmm1, %zmm0, %zmm0", "vmovups %zmm0, (%rdi) {%k1}"]
    masked, whole = steady(*lines), steady(*lines[:2], "vmovups %zmm0, (%rdi)")
    assert masked.masked_waits == pytest.approx(1, abs=0.1) and whole.masked_waits == 0
    assert masked.cycles > whole.cycles + 5


@pytest.mark.parametrize(("stride", "conflicts"), [(4096, 16), (4096 + 64, 0), (16384, 16), (64, 0)])
def test_lines_of_one_set_fight(stride: int, conflicts: int) -> None:
    lines = [f"vmovups {stride * i}(%rdi), %ymm{i % 8}" for i in range(16)]
    assert steady(*lines).l1_conflicts == conflicts
    assert steady(*lines[:12]).l1_conflicts == 0  # as many as a set has ways
