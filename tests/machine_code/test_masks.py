"""Branches over masks: those that a program is given are set, as when it is measured."""

from __future__ import annotations

import time

import pytest

from tests.machine_code.flows import flows

_LOOP = """
  br label %loop
loop:
  %i = phi i64 [ 0, {before} ], [ %next, %behind ]
  %at = getelementptr inbounds i8, ptr {mask}, i64 %i
  %one = load i8, ptr %at, align 1
  %is = icmp eq i8 %one, 0
  br i1 %is, label %unset, label %behind
unset:
  br label %behind
behind:
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, 40
  br i1 %more, label %loop, label %end
end:
  ret i32 0
}}
"""
_MACHINE = """{name}:
{first}	xorl	%eax, %eax
.LBB0_1:
	cmpb	$0, (%rdx,%rax)
	jne	.LBB0_3
.LBB0_2:
	vaddps	%ymm0, %ymm1, %ymm2
	vaddps	%ymm0, %ymm1, %ymm2
.LBB0_3:
	incq	%rax
	cmpq	$40, %rax
	jne	.LBB0_1
	retq
.Lfunc_end0:
"""
_INVERTED = """
  %given = load <40 x i8>, ptr %mask, align 1
  %zero = icmp eq <40 x i8> %given, zeroinitializer
  %inverse = {how} <40 x i1> %zero to <40 x i8>
  store <40 x i8> %inverse, ptr %made, align 1"""


def runs(kernel_text: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """How often the way of an unset mask is gone, and what is unknown: in the IR and in machine code."""
    told = flows(kernel_text, _MACHINE.format(name="main_compute_", first=""))
    ir, code = (functions["main_compute_"] for functions in told)
    return (ir.runs["unset"], ir.unknown), (code.runs[".LBB0_2"], code.unknown)


def kernel(before: str, mask: str) -> str:
    head = "define internal i32 @main_compute_(i32 %dev_id, ptr noalias %x, ptr noalias %mask) {\nentry:"
    return head + before + _LOOP.format(before="%entry", mask=mask)


def test_a_mask_that_a_program_is_given_is_set() -> None:
    assert runs(kernel("", "%mask")) == ((0, 0), (0, 0))


@pytest.mark.parametrize("how", ["zext", "sext"])
def test_what_is_made_of_masks_follows(how: str) -> None:
    made = "\n  %made = call ptr @workspace(i64 40)" + _INVERTED.format(how=how)
    assert runs(kernel(made, "%made")) == ((40, 0), (40, 0))


def test_masks_made_of_floats_stay_unknown() -> None:
    made = """
  %made = call ptr @workspace(i64 40)
  %given = load <40 x float>, ptr %x, align 4
  %zero = fcmp olt <40 x float> %given, zeroinitializer
  %bytes = zext <40 x i1> %zero to <40 x i8>
  store <40 x i8> %bytes, ptr %made, align 1"""
    ir, code = runs(kernel(made, "%made"))
    assert ir[1] > 0 and code[1] > 0


def test_bytes_that_are_copied_nobody_knows_from_where_are_unknown() -> None:
    copied = "\n  call void @llvm.memcpy.p0.p0.i64(ptr %mask, ptr %x, i64 40, i1 false)"
    ir, code = runs(kernel(copied, "%mask"))
    assert ir[1] > 0 and code[1] > 0


def test_where_two_masks_differ_only_the_ir_tells_which_is_read() -> None:
    made = "\n  %made = call ptr @workspace(i64 40)" + _INVERTED.format(how="zext") + "\n  %other = load i8, ptr %mask"
    ir, code = runs(kernel(made, "%made"))
    assert ir == (40, 0) and code[1] > 0


@pytest.mark.parametrize(("argument", "known"), [("%mask", True), ("%other", False)])
def test_threads_know_a_mask_by_the_name_of_the_argument(argument: str, known: bool) -> None:
    name = "__tvm_parallel_lambda"
    thread = (
        f"define private i32 @{name}(i32 %task_id, ptr %0, ptr %1) {{\nentry:\n  %mask = load ptr, ptr %1, align 8"
        + _LOOP.format(before="%entry", mask="%mask")
    )
    owner = f"define internal i32 @main_compute_(i32 %dev_id, ptr noalias {argument}) {{\nentry:\n  ret i32 0\n}}\n"
    code = _MACHINE.format(name=".L" + name, first="\tmovq\t(%rdx), %rdx\n")
    told = flows(owner + thread, code + "main_compute_:\n\tretq\n.Lfunc_end1:\n")
    assert [functions[name].unknown == 0 for functions in told] == [known, known]
    if known:
        assert (told[0][name].runs["unset"], told[1][name].runs[".LBB0_2"]) == (0, 0)


def test_masks_that_are_stored_in_many_pieces_are_read_once() -> None:
    pieces = 3000
    stores = [
        f"  %at{i} = getelementptr inbounds i8, ptr %{{to}}, i64 {8 * i}\n"
        f"  %from{i} = getelementptr inbounds i8, ptr %{{of}}, i64 {8 * i}\n"
        f"  %given{i} = load <8 x i8>, ptr %from{i}, align 1\n  store <8 x i8> %given{i}, ptr %at{i}, align 1"
        for i in range(pieces)
    ]
    made = "\n  %first = call ptr @workspace(i64 40)\n  %second = call ptr @workspace(i64 40)\n" + "\n".join(
        stores
    ).format(to="first", of="mask")
    again = "\n" + "\n".join(stores).replace("at", "to").replace("from", "of").replace("given", "copy")
    text = kernel(made + again.format(to="second", of="first"), "%second")
    start = time.process_time()
    assert runs(text)[0] == (0, 0)
    assert time.process_time() - start < 2  # not by pairs of stores
