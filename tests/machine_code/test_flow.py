"""How often blocks of the IR run: what decides branches is carried out, and what data decide is said to be unknown."""

from __future__ import annotations

import pytest

from tests.machine_code.flows import flows, ir_flow

PADDED = """
define i32 @main_compute_(ptr %a, i32 %data) {
entry:
  br label %row

row:
  %y = phi i64 [ 0, %entry ], [ %y.next, %row.end ]
  br label %column

column:
  %x = phi i64 [ 0, %row ], [ %x.next, %column.end ]
  CONDITION
  br i1 %inside, label %load, label %skip

load:
  %v = load float, ptr %a, align 4
  br label %column.end

skip:
  store float 0.0, ptr %a, align 4
  br label %column.end

column.end:
  %x.next = add i64 %x, 1
  %x.done = icmp eq i64 %x.next, 10
  br i1 %x.done, label %row.end, label %column

row.end:
  %y.next = add i64 %y, 1
  %y.done = icmp eq i64 %y.next, 20
  br i1 %y.done, label %end, label %row

end:
  ret i32 0
}
"""
SHARED = """
define internal i32 @__tvm_parallel_lambda(i32 %task_id, ptr %0, ptr %1) {
entry:
  %tasks = getelementptr inbounds nuw i8, ptr %0, i64 8
  %num_task = load i32, ptr %tasks, align 4
  %a = load ptr, ptr %1, align 8
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


def shared(extent: int) -> str:
    return SHARED.replace("EXTENT_1", str(extent - 1)).replace("EXTENT", str(extent))


@pytest.mark.parametrize(
    ("condition", "inside"),
    [
        ("%inside = icmp ult i64 %x, 10", 200),
        ("%inside = icmp ult i64 %x, 5", 100),
        ("%shifted = add i64 %x, -1\n  %inside = icmp sgt i64 %shifted, 20", 0),
        ("%inside = icmp slt i64 %y, 5", 50),
        ("%s = urem i64 %x, 3\n  %inside = icmp eq i64 %s, 0", 80),
        ("%s = udiv i64 %x, 3\n  %inside = icmp ne i64 %s, 1", 140),
        ("%s = and i64 %x, 6\n  %inside = icmp eq i64 %s, 2", 40),
        ("%s = lshr i64 %x, 1\n  %inside = icmp ult i64 %s, 3", 120),
        ("%s = mul i64 %y, 10\n  %t = add i64 %s, %x\n  %inside = icmp uge i64 %t, 150", 50),
        ("%m = call i64 @llvm.umin.i64(i64 %y, i64 3)\n  %inside = icmp eq i64 %m, %x", 20),
        ("%w = insertelement <2 x i64> poison, i64 %x, i64 0\n  %v2 = shufflevector <2 x i64> %w, <2 x i64> poison, "
         "<2 x i32> zeroinitializer\n  %c2 = icmp ult <2 x i64> %v2, <i64 4, i64 7>\n"
         "  %inside = extractelement <2 x i1> %c2, i64 1", 140),
        ("%w = insertelement <2 x i64> splat (i64 3), i64 %x, i64 0\n  %c2 = icmp ugt <2 x i64> %w, <i64 7, i64 5>\n"
         "  %inside = call i1 @llvm.vector.reduce.or.v2i1(<2 x i1> %c2)", 40),
        ("%w = insertelement <2 x i64> splat (i64 3), i64 %x, i64 0\n  %c2 = icmp ugt <2 x i64> %w, <i64 7, i64 5>\n"
         "  %bits = bitcast <2 x i1> %c2 to i2\n  %inside = icmp ne i2 %bits, 0", 40),
        ("%o = call { i64, i1 } @llvm.umul.with.overflow.i64(i64 %x, i64 3000000000000000000)\n"
         "  %inside = extractvalue { i64, i1 } %o, 1", 60),
    ],
)  # fmt: skip
def test_a_branch_in_a_nest(condition: str, inside: float) -> None:
    flow = ir_flow(PADDED.replace("CONDITION", condition))
    found = flow.runs
    assert flow.unknown == 0
    assert (found["row"], found["column"], found["column.end"], found["end"]) == (20, 200, 200, 1)
    assert (found["load"], found["skip"]) == (inside, 200 - inside)
    assert (flow.entries, flow.trips("column")) == ({"row": 1, "column": 20}, 10)


def test_what_data_decide_is_unknown_and_takes_turns() -> None:
    for condition in ("%inside = icmp eq i32 %data, 5", "%f = load float, ptr %a\n  %inside = fcmp ogt float %f, 0.0"):
        flow = ir_flow(PADDED.replace("CONDITION", condition))
        assert flow.unknown == 1
        assert (flow.runs["load"], flow.runs["skip"], flow.runs["column.end"]) == (100, 100, 200)


def test_what_hardly_matters_is_not_called_unknown() -> None:
    busy = PADDED.replace("  %x.next", "  %used = add i64 %x, %x\n" * 900 + "  %x.next")
    assert ir_flow(busy.replace("CONDITION", "%inside = icmp eq i32 %data, 5")).unknown == 0


@pytest.mark.parametrize(("extent", "vectors", "rest"), [(64, 8, 0), (67, 8, 3), (5, 0, 5), (8, 1, 0)])
def test_vectors_and_what_is_left_are_told_apart(extent: int, vectors: int, rest: int) -> None:
    flow = ir_flow(shared(extent))
    assert (flow.runs["vector.body"], flow.runs["rest"], flow.unknown) == (vectors, rest, 0)


def test_threads_run_as_often_as_they_are_launched() -> None:
    launch = PADDED.replace("CONDITION", "%inside = icmp ult i64 %x, 4").replace(
        "  %v = load", "  %r = call i32 %launch(ptr nonnull @__tvm_parallel_lambda, ptr %a, i32 0)\n  %v = load"
    )
    found = flows(launch + shared(64))
    assert {name: flow.times for name, flow in found[0].items()} == {"main_compute_": 1, "__tvm_parallel_lambda": 80}


@pytest.mark.parametrize("name", ["found.conflict", "diff.check", "whatever"])
def test_run_time_checks_of_buffers_are_evaluated_whatever_they_are_called(name: str) -> None:
    text = f"""
define i32 @main_compute_(ptr %a, ptr %b) {{
entry:
  %a1 = ptrtoint ptr %a to i64
  %b2 = ptrtoint ptr %b to i64
  %apart = sub i64 %b2, %a1
  %{name} = icmp ult i64 %apart, 128
  br i1 %{name}, label %scalar, label %vector
scalar:
  ret i32 0
vector:
  %near = getelementptr inbounds nuw i8, ptr %a, i64 64
  %n3 = ptrtoint ptr %near to i64
  %step = sub i64 %n3, %a1
  %overlaps = icmp ult i64 %step, 128
  br i1 %overlaps, label %same, label %scalar
same:
  ret i32 0
}}
"""
    flow = ir_flow(text)
    assert (flow.runs["scalar"], flow.runs["vector"], flow.runs["same"], flow.unknown) == (0, 1, 1, 0)


def nest(*trips: int) -> str:
    """Loops inside loops, of which the innermost has a branch that the outermost counter decides."""
    lines = ["define i32 @main_compute_(ptr %p) {", "entry:", "  br label %l0"]
    for i in range(len(trips)):
        before = "entry" if i == 0 else f"l{i - 1}"
        lines += [f"l{i}:", f"  %i{i} = phi i64 [ 0, %{before} ], [ %n{i}, %e{i} ]"]
        lines.append(f"  br label %l{i + 1}" if i + 1 < len(trips) else "  %c = icmp ult i64 %i0, 3")
    lines += [f"  br i1 %c, label %often, label %e{len(trips) - 1}", "often:", f"  br label %e{len(trips) - 1}"]
    for i in reversed(range(len(trips))):
        after = f"e{i - 1}" if i else "end"
        lines += [f"e{i}:", f"  %n{i} = add i64 %i{i}, 1", f"  %d{i} = icmp eq i64 %n{i}, {trips[i]}"]
        lines.append(f"  br i1 %d{i}, label %{after}, label %l{i}")
    return "\n".join([*lines, "end:", "  ret i32 0", "}", ""])


def test_great_nests_are_counted_exactly_without_running_each_iteration() -> None:
    flow = ir_flow(nest(1000, 1000, 1000, 1_000_000))
    assert flow.unknown == 0
    assert (flow.runs["l3"], flow.runs["often"], flow.entries["l3"]) == (10**15, 3 * 10**12, 10**9)


def test_what_takes_too_long_to_follow_is_unknown() -> None:
    chaos = "%s = mul i64 %x, %x\n  %t = mul i64 %s, %y\n  %m = urem i64 %t, 7\n  %inside = icmp eq i64 %m, 1"
    assert ir_flow(PADDED.replace("CONDITION", chaos)).unknown == 0
    great = PADDED.replace("%x.next, 10", "%x.next, 1000000").replace("%y.next, 20", "%y.next, 100000")
    flow = ir_flow(great.replace("CONDITION", chaos))
    assert flow.unknown >= 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("xor i32 5, -1", -6),
        ("zext i8 -1 to i32", 255),
        ("trunc i64 4294967295 to i32", -1),
        ("sdiv i32 -7, 2", -3),
        ("srem i32 -7, 2", -1),
        ("lshr i32 40, 3", 5),
        ("ashr i32 -40, 3", -5),
        ("select i1 true, i32 3, i32 4", 3),
        ("call i32 @llvm.umin.i32(i32 9, i32 4)", 4),
        ("call i32 @llvm.smax.i32(i32 -9, i32 4)", 4),
        ("call i32 @llvm.abs.i32(i32 -9, i1 false)", 9),
        ("call i32 @llvm.ctpop.i32(i32 255)", 8),
        ("call range(i32 0, 33) i32 @llvm.cttz.i32(i32 40, i1 true)", 3),
        ("call i32 @llvm.usub.sat.i32(i32 3, i32 9)", 0),
        ("tail call i32 %free(i32 1, i64 0, ptr %memory)", 0),
        ("add i32 %argument, 1", None),
        ("freeze i32 7", 7),
    ],
)
def test_arithmetic(text: str, value: int | None) -> None:
    flow = ir_flow(
        f"define i32 @main_compute_(i32 %argument, ptr %memory) {{\nentry:\n  %r = {text}\n  %c = icmp eq i32 %r, "
        f"{value or 0}\n  br i1 %c, label %yes, label %no\nyes:\n  store i32 0, ptr %memory\n"
        "  ret i32 0\nno:\n  ret i32 1\n}\n"
    )
    if value is None:
        assert flow.unknown == 1
    else:
        assert (flow.runs["yes"], flow.runs["no"], flow.unknown) == (1, 0, 0)


@pytest.mark.parametrize(
    ("latch", "trips"),
    [
        ("%c = icmp ne i64 %n, 24", 12),
        ("%c = icmp ne i64 %i, 24", 13),
        ("%c = icmp ult i64 %n, 25", 13),
        ("%c = icmp ult i64 %i, 25", 14),
        ("%t = trunc i64 %n to i32\n  %c = icmp ne i32 %t, 24", 12),
        ("%m = call i64 @llvm.smin.i64(i64 %i, i64 24)\n  %c = icmp ne i64 24, %m", 13),
        ("%c = icmp samesign ult i64 %i, 200000000", 100_000_001),
        ("%t = trunc i64 %i to i8\n  %c = icmp ne i8 %t, -2", 128),
        ("%t = sub i64 1000, %n\n  %c = icmp sgt i64 %t, 0", 500),
    ],
)
def test_ways_to_end_a_loop(latch: str, trips: int) -> None:
    text = (
        "define void @main_compute_(i64 %u) {\nentry:\n  br label %body\nbody:\n"
        "  %i = phi i64 [ 0, %entry ], [ %n, %body ]\n  %n = add i64 %i, 2\n"
        f"  {latch}\n  br i1 %c, label %body, label %end\nend:\n  ret void\n}}\n"
    )
    flow = ir_flow(text)
    assert (flow.runs["body"], flow.unknown) == (trips, 0)
