"""What is known before a function runs: a parallel loop that LLVM vectorised, as TVM compiles it."""

from __future__ import annotations

import pytest

from cdmpp.cores import get_core
from cdmpp.machine_code.code_features import CODE_NAMES
from cdmpp.machine_code.code_vector import code_vector
from cdmpp.machine_code.constants import Constants
from cdmpp.machine_code.flow import frequencies
from cdmpp.machine_code.ir import parse
from cdmpp.machine_code.loops import loops_of

SHARED = """
define internal i32 @__tvm_parallel_lambda(i32 %task_id, ptr %env, ptr %a) {
entry:
  %num_task = load i32, ptr %env, align 4
  %whole = add nsw i32 %num_task, EXTENT_1
  %share = sdiv i32 %whole, %num_task
  %next_id = add nsw i32 %task_id, 1
  %ends = mul nsw i32 %share, %next_id
  %end = tail call i32 @llvm.smin.i32(i32 %ends, i32 EXTENT)
  %begin = mul nsw i32 %share, %task_id
  %any = icmp slt i32 %begin, %end
  br i1 %any, label %preheader, label %exit

preheader:
  %first = sext i32 %begin to i64
  %flipped = xor i32 %begin, -1
  %minus_one = add i32 %end, %flipped
  %wide = zext i32 %minus_one to i64
  %n = add nuw nsw i64 %wide, 1
  %short = icmp ult i32 %minus_one, 7
  br i1 %short, label %rest.preheader, label %vector.ph

vector.ph:
  %n.vec = and i64 %n, 8589934584
  %reached = add nsw i64 %n.vec, %first
  br label %vector.body

vector.body:
  %index = phi i64 [ 0, %vector.ph ], [ %index.next, %vector.body ]
  %x = load <8 x float>, ptr %a, align 4
  store <8 x float> %x, ptr %a, align 4
  %index.next = add nuw i64 %index, 8
  %done = icmp eq i64 %index.next, %n.vec
  br i1 %done, label %middle.block, label %vector.body

middle.block:
  %nothing_left = icmp eq i64 %n, %n.vec
  br i1 %nothing_left, label %exit, label %rest.preheader

rest.preheader:
  %from = phi i64 [ %first, %preheader ], [ %reached, %middle.block ]
  br label %rest

rest:
  %i = phi i64 [ %i.next, %rest ], [ %from, %rest.preheader ]
  %y = load float, ptr %a, align 4
  store float %y, ptr %a, align 4
  %i.next = add nsw i64 %i, 1
  %narrow = trunc i64 %i.next to i32
  %stop = icmp eq i32 %end, %narrow
  br i1 %stop, label %exit, label %rest

exit:
  ret i32 0
}
"""


NO_LOOPS = "__tvm_parallel_lambda:\n\txorl\t%eax, %eax\n\tretq\n.Lfunc_end0:\n"


def shared(extent: int) -> str:
    return SHARED.replace("EXTENT_1", str(extent - 1)).replace("EXTENT", str(extent))


@pytest.mark.parametrize(("extent", "vectors", "rest"), [(64, 8, 0), (67, 8, 3), (5, 0, 5), (8, 1, 0)])
def test_vectors_and_what_is_left_are_told_apart(extent: int, vectors: int, rest: int) -> None:
    (function,) = parse(shared(extent))
    constants = Constants(function)
    loops = loops_of(function, constants)
    runs = frequencies(function, constants, loops)
    assert (runs["vector.body"], runs["rest"]) == (vectors, rest)
    assert all(loop.trips for loop in loops)
    vector = code_vector(shared(extent), NO_LOOPS, get_core("ice_lake"))
    amounts = {name: 2.0 ** float(vector[CODE_NAMES.index(name)]) - 1 for name in ("n_load_8", "n_load_1")}
    assert amounts == pytest.approx({"n_load_8": vectors, "n_load_1": rest}, abs=1e-3)


def test_buffers_of_the_arguments_do_not_overlap() -> None:
    checked = """
define i32 @main_compute_(ptr %a, ptr %b, i64 %offset) {
entry:
  %found.conflict12 = and i1 %bound0, %bound1
  %far = icmp ugt i64 %offset, 7
  %slow = select i1 %far, i1 true, i1 %found.conflict12
  br i1 %found.conflict12, label %scalar, label %vector

scalar:
  ret i32 0

vector:
  ret i32 0
}
"""
    (function,) = parse(checked)
    constants = Constants(function)
    assert constants.reached == {"entry", "vector"}
    assert constants.exact("%slow") is None


def test_what_depends_on_the_run_is_unknown() -> None:
    (function,) = parse(shared(64))
    constants = Constants(function)
    assert constants.exact("%index") is None and constants.exact("%x") is None
    assert constants.exact("%n.vec") == 64 and constants.exact("%first") == 0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("xor i32 5, -1", -6),
        ("zext i8 -1 to i32", 255),
        ("trunc i64 4294967295 to i32", -1),
        ("sdiv i32 -7, 2", -3),
        ("srem i32 -7, 2", -1),
        ("lshr i32 40, 3", 5),
        ("select i1 true, i32 3, i32 4", 3),
        ("icmp samesign ult i64 3, 4", 1),
        ("call i32 @llvm.umin.i32(i32 9, i32 4)", 4),
        ("udiv i32 1, 0", None),
        ("icmp eq ptr %memory, null", 0),
        ("tail call i32 %free(i32 1, i64 0, ptr %memory)", 0),
        ("add i32 %argument, 1", None),
    ],
)
def test_arithmetic(text: str, value: int | None) -> None:
    (function,) = parse(f"define i32 @main_compute_(i32 %argument) {{\nentry:\n  %r = {text}\n  ret i32 0\n}}\n")
    assert Constants(function).exact("%r") == value
