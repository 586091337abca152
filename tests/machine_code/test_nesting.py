"""Loops of the IR found again in machine code that stands in another order, or has loops the IR has not."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.machine_code.assembly import parse_assembly
from cdmpp.machine_code.constants import Constants
from cdmpp.machine_code.flow import frequencies
from cdmpp.machine_code.ir import parse
from cdmpp.machine_code.loops import loops_of
from cdmpp.machine_code.nesting import MachineFlow, machine_flow


def loop(name: str, trips: int, after: str, body: str = "") -> str:
    return (
        f"{name}:\n  %i_{name} = phi i64 [ 0, %entry ], [ %n_{name}, %{name} ]\n{body}"
        f"  %n_{name} = add i64 %i_{name}, 1\n  %c_{name} = icmp eq i64 %n_{name}, {trips}\n"
        f"  br i1 %c_{name}, label %{after}, label %{name}\n"
    )


ADD = "  %s = fadd <8 x float> %x, %y\n  %t = fadd <8 x float> %s, %y\n"
COPY = "  store <8 x float> %x, ptr %p\n"
IR = (
    "define i32 @main_compute_(ptr %p) {\nentry:\n  br label %sums\n"
    + loop("sums", 30, "copies", ADD)
    + loop("copies", 7, "end", COPY).replace("%entry", "%sums")
    + "end:\n  ret i32 0\n}\n"
)
SUMS = ".LBB0_SUMS:\n\tvaddps\t%ymm0, %ymm1, %ymm2\n\tvaddps\t%ymm2, %ymm1, %ymm2\n\tdecq\t%rax\n\tjne\t.LBB0_SUMS\n"
COPIES = ".LBB0_COPIES:\n\tvmovups\t%ymm0, (%rdi)\n\tdecq\t%rcx\n\tjne\t.LBB0_COPIES\n"


def flow_of(assembly: str, ir: str = IR) -> MachineFlow:
    (function,) = parse(ir)
    constants = Constants(function)
    loops = loops_of(function, constants)
    machine = parse_assembly(assembly)["main_compute_"]
    return machine_flow(machine, function, loops, frequencies(function, constants, loops))


def wrapped(*parts: str) -> str:
    return "main_compute_:\n\txorl\t%eax, %eax\n" + "".join(parts) + "\tretq\n.Lfunc_end0:\n"


def test_runs_are_those_of_the_ir() -> None:
    flow = flow_of(wrapped(SUMS, COPIES))
    assert (flow.runs[".LBB0_SUMS"], flow.runs[".LBB0_COPIES"]) == (30, 7)
    assert flow.trips == {".LBB0_SUMS": 30, ".LBB0_COPIES": 7}
    assert flow.unmatched_loops == 0
    assert ((".LBB0_SUMS",), ".LBB0_SUMS") in flow.pieces and (("entry",), None) in flow.pieces


def test_a_loop_is_known_by_what_it_does_not_by_its_place() -> None:
    flow = flow_of(wrapped(COPIES, SUMS))
    assert (flow.runs[".LBB0_SUMS"], flow.runs[".LBB0_COPIES"]) == (30, 7)


def test_a_loop_that_the_ir_lacks_is_said() -> None:
    third = COPIES.replace("COPIES", "MORE").replace("vmovups\t%ymm0, (%rdi)", "movb\t%al, (%rdi)")
    flow = flow_of(wrapped(SUMS, COPIES, third))
    assert flow.unmatched_loops == 1
    assert (flow.runs[".LBB0_SUMS"], flow.runs[".LBB0_COPIES"]) == (30, 7)
    assert flow.runs[".LBB0_MORE"] == pytest.approx(4)


def test_loops_with_two_entries_end() -> None:
    twisted = (
        "\ttestl\t%edi, %edi\n\tje\t.LBB0_B\n.LBB0_A:\n\tvaddps\t%ymm0, %ymm1, %ymm2\n"
        ".LBB0_B:\n\tvaddps\t%ymm2, %ymm1, %ymm2\n\tdecq\t%rax\n\tjne\t.LBB0_A\n"
    )
    flow = flow_of(wrapped(twisted, COPIES))
    assert flow.runs[".LBB0_COPIES"] == 7
    assert all(np.isfinite(runs) for runs in flow.runs.values())
    assert sorted(block for blocks, _ in flow.pieces for block in blocks) == sorted(flow.runs)


def test_a_branch_inside_a_loop_runs_as_often_as_in_the_ir() -> None:
    ir = """
define i32 @main_compute_(ptr %p, i64 %n) {
entry:
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %latch ]
  %inner = icmp ult i64 %i, 25
  br i1 %inner, label %work, label %latch
work:
  %s = fadd <8 x float> %x, %y
  %t = fmul <8 x float> %s, %y
  store <8 x float> %t, ptr %p
  br label %latch
latch:
  %next = add i64 %i, 1
  %stop = icmp eq i64 %next, 100
  br i1 %stop, label %end, label %body
end:
  ret i32 0
}
"""
    assembly = wrapped(
        ".LBB0_1:\n\tcmpq\t$24, %rax\n\tja\t.LBB0_3\n"
        ".LBB0_2:\n\tvaddps\t%ymm0, %ymm1, %ymm2\n\tvmulps\t%ymm2, %ymm1, %ymm2\n\tvmovups\t%ymm2, (%rdi)\n"
        ".LBB0_3:\n\tincq\t%rax\n\tcmpq\t$100, %rax\n\tjne\t.LBB0_1\n"
    )
    flow = flow_of(assembly, ir)
    assert flow.runs[".LBB0_1"] == flow.runs[".LBB0_3"] == pytest.approx(100)
    assert flow.runs[".LBB0_2"] == pytest.approx(25, abs=12)
    # Three times in four it is jumped over: not part of the usual way.
    assert ((".LBB0_1", ".LBB0_3"), ".LBB0_1") in flow.pieces and ((".LBB0_2",), None) in flow.pieces


def test_loops_of_aarch64_are_known_by_what_they_do_too() -> None:
    copies = ".LBB0_COPIES:\n\tstr\tq0, [x0], #16\n\tsubs\tx9, x9, #1\n\tb.ne\t.LBB0_COPIES\n"
    sums = (
        ".LBB0_SUMS:\n\tfadd\tv2.4s, v1.4s, v0.4s\n\tfadd\tv2.4s, v1.4s, v2.4s\n"
        "\tsubs\tx8, x8, #1\n\tb.ne\t.LBB0_SUMS\n"
    )
    for parts in ((sums, copies), (copies, sums)):
        flow = flow_of("main_compute_:\n\tmov\tw0, wzr\n" + "".join(parts) + "\tret\n.Lfunc_end0:\n")
        assert (flow.runs[".LBB0_SUMS"], flow.runs[".LBB0_COPIES"]) == (30, 7)
        assert flow.unmatched_loops == 0
