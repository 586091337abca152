"""``benchmarks.counts``: what a processor executes, what the reader says, and that a wrong reader is seen."""

from __future__ import annotations

import dataclasses
import json
import platform
import shutil
from pathlib import Path

import pytest

from benchmarks.counts import measuring
from benchmarks.counts.blocks import counting
from benchmarks.counts.caches import CacheRow, buffer_lines
from benchmarks.counts.called import calls_of, inside
from benchmarks.counts.counted import taken_for
from benchmarks.counts.executed import Runnable, executed
from benchmarks.counts.instructions import Instruction, instruction
from benchmarks.counts.measuring import row_of, rows_of
from benchmarks.counts.programs import UNTUNED, Case
from benchmarks.counts.table import Row, add_rows, read_rows, write_rows
from cdmpp.machine_code.cpu.compile import Compiled

runs_here = pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which("gcc"), reason="programs are assembled and run on x86-64"
)
HEAD = "\t.text\n\t.globl\t__tvm_ffi_main\n__tvm_ffi_main:\n\tjmp\tmain_compute_\n"
LOOP = """main_compute_:
	xorl	%ecx, %ecx
.LBB0_1:
	addss	%xmm0, %xmm1
	cmpl	$3, %ecx
	jae	.LBB0_3
.LBB0_2:
	movl	%ecx, -8(%rsp)
.LBB0_3:
	incl	%ecx
	cmpl	$10, %ecx
	jne	.LBB0_1
	xorl	%eax, %eax
	retq
.Lfunc_end0:
"""
CRASH = "main_compute_:\n\txorl\t%eax, %eax\n\tmovl\t(%rax), %eax\n\tretq\n.Lfunc_end0:\n"
IR = "define i32 @main_compute_() {\nentry:\n  ret i32 0\n}\n"
CASE = Case("by hand", "elementwise", "kernel", "x86-64-v2", UNTUNED)
INSTRUCTIONS = 1 + 10 * 3 + 3 + 10 * 3 + 2


@runs_here
def test_blocks_run_as_often_as_they_do() -> None:
    (one,) = executed([Runnable(HEAD + LOOP, ())])
    assert (one.error, one.runs) == ("", (1, 10, 3, 10, 1))
    assert [block.lines[0] for block in one.program.blocks][2] == "movl %ecx, -8(%rsp)"


@runs_here
def test_a_program_that_fails_is_told_and_stops_no_other() -> None:
    found = executed([Runnable(HEAD + text, ()) for text in (LOOP, CRASH, "main_compute_:\n\tnonsense\t%eax\n", LOOP)])
    assert [one.runs for one in found] == [(1, 10, 3, 10, 1), (), (), (1, 10, 3, 10, 1)]
    assert found[1].error == "it ended with status 139"
    assert "nonsense" in found[2].error
    assert row_of(CASE, Compiled(IR, HEAD + CRASH), found[1]).error == found[1].error


@runs_here
def test_a_reader_that_is_right_and_one_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    code = Compiled(IR, HEAD + LOOP)
    (ran,) = executed([Runnable(code.assembly, ())])
    row = row_of(CASE, code, ran)
    assert row.executed == row.counted
    assert (row.ratio(), row.worst, row.known) == (1.0, "", True)
    wanted = {"instructions": INSTRUCTIONS, "stores": 3, "branches": 21, "scalar_floats": 10, "loads": 0, "calls": 0}
    assert {kind: row.executed[kind] for kind in wanted} == wanted

    right = measuring.counted

    def twice_in_the_loop(one: Compiled):
        functions = right(one)
        for function in functions.values():
            function.lines = [(line, runs * (2 if runs == 10 else 1), block) for line, runs, block in function.lines]
        return functions

    monkeypatch.setattr(measuring, "counted", twice_in_the_loop)
    row = row_of(CASE, code, ran)
    assert row.counted["instructions"] == INSTRUCTIONS + 60
    assert row.worst == "main_compute_ .LBB0_1 10/20"
    monkeypatch.setattr(measuring, "taken_for", lambda line, arm: (1,) + (0,) * 8)
    assert row_of(CASE, code, ran).counted["branches"] == 0


KINDS = {
    "addss %xmm0, %xmm1": Instruction(scalar_floats=1),
    "vaddps (%rdi,%rax,4), %ymm0, %ymm1": Instruction(loads=1, vector_256=1),
    "vfmadd231ps 64(%rsp), %zmm3, %zmm4": Instruction(loads=1, vector_512=1),
    "vmovups %ymm0, 32(%rsi)": Instruction(stores=1),
    "addl $4, (%rdi)": Instruction(loads=1, stores=1),
    "cmpb $0, (%rdx,%rax)": Instruction(loads=1),
    "leaq 8(%rdi), %rax": Instruction(),
    "vmaxps %xmm0, %xmm1, %xmm2": Instruction(vector_128=1),
    "vmulsd %xmm0, %xmm1, %xmm2": Instruction(scalar_floats=1),
    "callq expf@PLT": Instruction(calls=1),
    "jne .LBB0_1": Instruction(branches=1),
    "retq": Instruction(branches=1),
    "vpaddd %ymm0, %ymm1, %ymm2": Instruction(),
    "vdivps %ymm0, %ymm1, %ymm2": Instruction(),
    "imulq $12, (%rdi), %rax": Instruction(loads=1),
    "movss %xmm0, (%rdi)": Instruction(stores=1),
    "mulps (%rdi), %xmm0": Instruction(loads=1, vector_128=1),
}


@pytest.mark.parametrize("line", KINDS)
def test_the_oracle_and_the_reader_take_an_instruction_for_the_same(line: str) -> None:
    assert instruction(line) == KINDS[line]
    assert taken_for(line) == KINDS[line]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("ldr q0, [x1, #16]", Instruction(loads=1)),
        ("fmla v0.4s, v1.4s, v2.4s", Instruction(vector_128=1)),
        ("fmadd s0, s1, s2, s0", Instruction(scalar_floats=1)),
        ("str s0, [x0]", Instruction(stores=1)),
        ("b.ne .LBB0_1", Instruction(branches=1)),
        ("bl expf", Instruction(calls=1)),
    ],
)
def test_instructions_of_aarch64(line: str, kind: Instruction) -> None:
    assert instruction(line, arm=True) == kind
    assert taken_for(line, arm=True) == kind


def test_counters_change_neither_flags_nor_the_order_of_blocks() -> None:
    counted = counting(HEAD + LOOP)
    assert [len(block.lines) for block in counted.blocks] == [1, 3, 1, 3, 2]
    added = set(counted.assembly.splitlines()) - set((HEAD + LOOP).splitlines())
    names = {line.split()[0] for line in added if line.startswith("\t") and not line.startswith("\t.")}
    assert names == {"movq", "leaq"}


def test_rows_are_kept_and_the_last_of_a_case_counts(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv.xz"
    kinds = dict.fromkeys(Instruction._fields, 7)
    first = Row(**dataclasses.asdict(CASE), executed=kinds, counted={**kinds, "calls": 14}, worst="somewhere")
    add_rows([first], path)
    add_rows([dataclasses.replace(first, draw=1, error="it ended with status 139", executed={}, counted={})], path)
    again = dataclasses.replace(first, counted=kinds, known=False)
    add_rows([again], path)
    assert [row.error for row in read_rows(path)] == ["", "it ended with status 139"]
    assert write_rows(path=path)[0] == again == read_rows(path)[0]
    assert (first.ratio("calls"), again.ratio("calls")) == (2.0, 1.0)


def test_instructions_inside_calls_are_those_of_the_library() -> None:
    text = (
        "fn=probe_0_0\n0 4\ncfn=same\ncalls=1 0\n0 2\n0 1\ncfn=memset\ncalls=1 0\n0 25\n0 3\n"
        "fn=main\n0 9\ncfn=probe_0_0\ncalls=1 0\n0 35\n"
    )
    assert inside(text) == {"probe_0_0": 25}
    assert list(calls_of("memset")) == [f"{size:,} bytes" for size in (4, 16, 64, 256, 1024, 4096, 65536)]
    assert all("0.7f" in call for one in calls_of("powf").values() for call in one)


GOLDEN = Path(__file__).parent / "golden" / "executed.json"


@runs_here
@pytest.mark.tvm
@pytest.mark.parametrize("mcpu", ["x86-64-v2", "haswell", "znver3"])
def test_ten_programs_execute_what_they_did(mcpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tvm")
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path))
    golden = [one for one in json.loads(GOLDEN.read_text()) if one["mcpu"] == mcpu]
    cases = [Case(one["name"], one["op_class"], "kernel", mcpu, UNTUNED) for one in golden]
    rows = {row.name: row for row in rows_of(cases)}
    for one in golden:
        row = rows[one["name"]]
        assert (row.error, row.known) == ("", True)
        assert row.executed == one["executed"] == row.counted


def test_a_program_whose_buffers_fit_a_cache_misses_each_line_once() -> None:
    row = CacheRow("by hand", "softmax", UNTUNED, "[]", "[]", 610, 405, said_first=900, said_last=800, buffers=600)
    assert [row.said(level, whole=False) for level in ("first", "last")] == [900, 800]
    assert [row.said(level, whole=True) for level in ("first", "last")] == [900, 600]  # 600 lines are more than 32 KiB
    assert [row.seen(level) for level in ("first", "last")] == [610, 405]
    fewer = dataclasses.replace(row, said_last=500)  # of buffers that are never whole
    assert fewer.said("last", whole=True) == 500


def test_buffers_are_arguments_and_what_lies_between_them() -> None:
    pytest.importorskip("tvm")
    from benchmarks.counts.kernels import kernel_task
    from cdmpp.programs.replay import parse_workload

    lines = -(-13 * 101 * 4 // 64)
    found = buffer_lines(parse_workload(kernel_task("softmax 13x101").workload))
    assert found == 3 * lines + 2 * 1  # input, exponentials and result; largest and sum of each row
