"""Loops of the IR found again in AArch64 code that stands in another order, or has loops the IR has not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.machine_code.flows import FunctionFlow, machine_flow


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
SUMS = ".LBB0_SUMS:\n\tfadd\tv2.4s, v1.4s, v0.4s\n\tfadd\tv2.4s, v1.4s, v2.4s\n\tsubs\tx8, x8, #1\n\tb.ne\t.LBB0_SUMS\n"
COPIES = ".LBB0_COPIES:\n\tstr\tq0, [x0], #16\n\tsubs\tx9, x9, #1\n\tb.ne\t.LBB0_COPIES\n"

BRANCH = (
    ".LBB0_1:\n\tcmp\tx8, #24\n\tb.hi\t.LBB0_3\n"
    ".LBB0_2:\n\tfadd\tv2.4s, v1.4s, v0.4s\n\tfmul\tv2.4s, v1.4s, v2.4s\n\tstr\tq2, [x0]\n"
    ".LBB0_3:\n\tadd\tx8, x8, #1\n\tcmp\tx8, #100\n\tb.ne\t.LBB0_1\n"
)
ONE_LOOP = (
    IR[: IR.index("  br label %sums")] + "  br label %sums\n" + loop("sums", 100, "end", ADD) + "end:\n  ret i32 0\n}\n"
)


def flow_of(assembly: str, ir: str = IR) -> FunctionFlow:
    return machine_flow(assembly, llvm_ir=ir)


def wrapped(*parts: str) -> str:
    return "main_compute_:\n\tmov\tw0, wzr\n" + "".join(parts) + "\tret\n.Lfunc_end0:\n"


def test_runs_are_those_of_the_ir() -> None:
    flow = flow_of(wrapped(SUMS, COPIES))
    assert (flow.runs[".LBB0_SUMS"], flow.runs[".LBB0_COPIES"]) == (30, 7)
    assert {header: flow.trips(header) for header in flow.bodies} == {".LBB0_SUMS": 30, ".LBB0_COPIES": 7}
    assert flow.unknown == 0


def test_a_loop_is_known_by_what_it_does_not_by_its_place() -> None:
    flow = flow_of(wrapped(COPIES, SUMS))
    assert (flow.runs[".LBB0_SUMS"], flow.runs[".LBB0_COPIES"]) == (30, 7)


def test_a_loop_that_the_ir_lacks_is_said() -> None:
    third = COPIES.replace("COPIES", "MORE").replace("str\tq0, [x0], #16", "strb\tw1, [x0], #1")
    flow = flow_of(wrapped(SUMS, COPIES, third))
    assert flow.unknown == 1
    assert (flow.runs[".LBB0_SUMS"], flow.runs[".LBB0_COPIES"]) == (30, 7)
    assert flow.runs[".LBB0_MORE"] == pytest.approx(4)


def test_loops_with_two_entries_end() -> None:
    twisted = (
        "\tcbz\tx1, .LBB0_B\n.LBB0_A:\n\tfadd\tv2.4s, v1.4s, v0.4s\n"
        ".LBB0_B:\n\tfadd\tv2.4s, v1.4s, v2.4s\n\tsubs\tx8, x8, #1\n\tb.ne\t.LBB0_A\n"
    )
    flow = flow_of(wrapped(twisted, COPIES))
    assert flow.runs[".LBB0_COPIES"] == 7
    assert all(np.isfinite(runs) for runs in flow.runs.values())


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
    flow = flow_of(wrapped(BRANCH), ir)
    assert flow.runs[".LBB0_1"] == flow.runs[".LBB0_3"] == pytest.approx(100)
    assert flow.runs[".LBB0_2"] == pytest.approx(25)
    assert flow.unknown == 0


def test_a_branch_that_the_ir_lacks_is_unknown_where_it_matters() -> None:
    assert flow_of(wrapped(SUMS), ONE_LOOP).unknown == 0
    assert flow_of(wrapped(BRANCH), ONE_LOOP).unknown == 1
    much = "\tfadd\tv2.4s, v1.4s, v0.4s\n" * 200
    assert flow_of(wrapped(BRANCH.replace(".LBB0_3:\n", ".LBB0_3:\n" + much)), ONE_LOOP).unknown == 0


def test_a_loop_that_the_machine_code_lacks_is_said() -> None:
    assert flow_of(wrapped(SUMS)).unknown == 1
