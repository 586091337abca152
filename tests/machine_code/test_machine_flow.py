"""How often blocks of x86-64 code run: its branches are carried out, whatever the IR says."""

from __future__ import annotations

import pytest

from tests.machine_code.flows import machine_flow


def wrapped(text: str) -> str:
    """A function of these lines."""
    lines = (
        line if line.endswith(":") else "\t" + line.strip().replace(" ", "\t", 1) for line in text.strip().splitlines()
    )
    return "main_compute_:\n" + "\n".join(lines) + "\n\txorl\t%eax, %eax\n\tretq\n.Lfunc_end0:\n"


def runs_of(text: str) -> dict[str, float]:
    flow = machine_flow(wrapped(text))
    assert flow.unknown == 0
    return flow.runs


def test_a_branch_inside_a_loop() -> None:
    flow = machine_flow(
        wrapped(
            "xorl %eax, %eax\n.LBB0_1:\ncmpq $24, %rax\nja .LBB0_3\n.LBB0_2:\nvaddps %ymm0, %ymm1, %ymm2\n"
            ".LBB0_3:\nincq %rax\ncmpq $100, %rax\njne .LBB0_1"
        )
    )
    assert flow.runs == {"entry": 1, ".LBB0_1": 100, ".LBB0_2": 25, ".LBB0_3": 100, ".LBB0_3+1": 1}
    assert (flow.entries, flow.bodies) == ({".LBB0_1": 1}, {".LBB0_1": {".LBB0_1", ".LBB0_2", ".LBB0_3"}})


def test_loops_with_two_entries() -> None:
    found = runs_of(
        "movl $7, %eax\ntestl %eax, %eax\njne .LBB0_B\n.LBB0_A:\nvaddps %ymm0, %ymm1, %ymm2\n"
        ".LBB0_B:\nvaddps %ymm2, %ymm1, %ymm2\ndecq %rax\njne .LBB0_A"
    )
    assert (found[".LBB0_A"], found[".LBB0_B"]) == (6, 7)


@pytest.mark.parametrize(
    ("setup", "step", "jump", "trips"),
    [
        ("movl $10, %ecx", "decl %ecx", "jne", 10),
        ("movl $10, %ecx", "subl $3, %ecx", "jg", 4),
        ("movq $-4096, %rcx", "addq $64, %rcx", "jne", 64),
        ("movq $-4096, %rcx", "addq $48, %rcx", "jae", 86),
        ("movl $3, %ecx", "leaq 2(%rcx,%rcx,2), %rcx\ncmpq $1000, %rcx", "jl", 6),
        ("xorl %ecx, %ecx", "addl $16, %ecx\ncmpl $512, %ecx", "jb", 32),
        ("xorl %ecx, %ecx", "addl $16, %ecx\ncmpl $500, %ecx", "jbe", 32),
        ("xorl %ecx, %ecx", "incl %ecx\ntestb $8, %cl", "je", 8),
        ("xorl %ecx, %ecx", "incl %ecx\nmovl %ecx, %eax\nshrl $4, %eax", "je", 16),
        ("xorl %ecx, %ecx", "incl %ecx\nbtl $5, %ecx", "jae", 32),
        (
            "movq $0, -8(%rsp)",
            "movq -8(%rsp), %rcx\nincq %rcx\nmovq %rcx, -8(%rsp)\ncmpq $2000000000, %rcx",
            "jne",
            2e9,
        ),
        ("movb $1, -4(%rsp)", "movl -4(%rsp), %ecx\nmovb $0, -4(%rsp)\ntestb $1, %cl", "jne", 2),
        ("leaq 4096(%rdi), %rdx", "addq $32, %rdi\ncmpq %rdx, %rdi", "jne", 128),
        ("movl $6, %ecx", "imull $7, %ecx, %ecx\ncmpl $100000, %ecx", "jl", 5),
        ("movl $1000, %eax\nmovl $7, %ecx", "cltd\nidivl %ecx\ntestl %eax, %eax", "jne", 4),
        ("xorl %ecx, %ecx", "incq %rcx\nmovl $9, %eax\ncmpq $20, %rcx\ncmovaeq %rcx, %rax\ncmpq $9, %rax", "je", 20),
        ("xorl %ecx, %ecx", "incq %rcx\ncmpq $20, %rcx\nsetb %al\ntestb %al, %al", "jne", 20),
        ("movl $64, %ecx", "callq expf@PLT\nmovl $64, %ecx\ntestl %eax, %eax", "jne", 1),
        ("pushq %rbx\nmovl $5, %ebx", "callq expf@PLT\ndecl %ebx", "jne", 5),
    ],
)
def test_trips(setup: str, step: str, jump: str, trips: float) -> None:
    found = runs_of(f"{setup}\n.LBB0_1:\nvaddps %ymm0, %ymm1, %ymm2\n{step}\n{jump} .LBB0_1")
    assert found[".LBB0_1"] == max(trips, 1)


@pytest.mark.parametrize(
    "check",
    [
        "movl (%rdi), %ecx\ncmpl $5, %ecx",
        "vucomiss %xmm0, %xmm1",
        "vmovmskps %ymm0, %ecx\ntestl %ecx, %ecx",
        "vmovups %ymm0, -64(%rsp)\nmovl -60(%rsp), %ecx\ntestl %ecx, %ecx",
        "callq expf@PLT\ntestl %ecx, %ecx",
    ],
)
def test_what_data_decide_is_unknown(check: str) -> None:
    flow = machine_flow(wrapped(f"{check}\njne .LBB0_2\n.LBB0_1:\nnop\n.LBB0_2:\nnop"))
    assert flow.unknown == 1


def diamond(left: int, right: int, around: int = 0, inner: str = "") -> str:
    """Two ways of so many instructions each, which data decide, behind ``around`` others."""
    first, second = "nop\n" * (left - 1), "nop\n" * right
    return (
        "nop\n" * around + "vucomiss (%rdi), %xmm0\njne .LBB0_2\n.LBB0_1:\n"
        f"{first}{inner}jmp .LBB0_3\n.LBB0_2:\n{second}.LBB0_3:\nnop"
    )


@pytest.mark.parametrize(
    ("left", "right", "around", "known"),
    [
        (30, 30, 0, True),
        (60, 59, 0, True),
        (30, 26, 0, False),
        (30, 26, 400, True),
        (1, 0, 100, True),
        (30, 0, 400, False),
    ],
)
def test_ways_of_about_the_same_length_are_as_good_as_known(left: int, right: int, around: int, known: bool) -> None:
    flow = machine_flow(wrapped(diamond(left, right, around)))
    assert (flow.unknown == 0) == known


def test_branches_behind_an_undecided_one_are_held_by_its_range() -> None:
    inner = "vucomiss (%rsi), %xmm0\nje .LBB0_5\n.LBB0_4:\n" + "nop\n" * 20 + ".LBB0_5:\n"
    assert machine_flow(wrapped(diamond(10, 20, 400, inner))).unknown > 0
    assert machine_flow(wrapped(diamond(10, 20, 4000, inner))).unknown == 0


def test_a_call_that_data_decide_weighs_more_than_an_instruction() -> None:
    assert machine_flow(wrapped(diamond(30, 30, 400))).unknown == 0
    assert machine_flow(wrapped(diamond(30, 30, 400, "callq *(%rax)\n"))).unknown > 0


def test_how_long_a_loop_runs_is_unknown_where_data_end_it() -> None:
    loop = "nop\n" * 900 + ".LBB0_1:\nnop\nvucomiss (%rdi), %xmm0\njne .LBB0_1"
    assert machine_flow(wrapped(loop.replace("nop\nvu", "nop\n" * 40 + "vu"))).unknown > 0


def test_jumps_through_tables_are_unknown() -> None:
    assert machine_flow(wrapped("jmpq *.LJTI0_0(,%rax,8)\n.LBB0_1:\nnop")).unknown >= 1


def test_threads_do_all_work_as_one_task() -> None:
    thread = wrapped(
        "movl 8(%rsi), %ecx\nleal 99(%rcx), %eax\ncltd\nidivl %ecx\ncmpl $100, %eax\nmovl $100, %ecx\n"
        "cmovll %eax, %ecx\nmovq (%rdx), %rdi\n.LBB0_1:\nvmovups %ymm0, (%rdi)\ndecl %ecx\njne .LBB0_1"
    )
    flow = machine_flow(thread.replace("main_compute_", ".L__tvm_parallel_lambda"), "__tvm_parallel_lambda")
    assert (flow.runs[".LBB0_1"], flow.unknown) == (100, 0)
