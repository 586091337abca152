"""The native code vector gives what the readable one gives, to the last bit, with the same flows."""

from __future__ import annotations

import contextlib
import math
import random

import numpy as np
import pytest

from cdmpp.devices.cores import core_names, get_core
from cdmpp.errors import DataError
from cdmpp.machine_code.cpu import code_vector as readable
from cdmpp.machine_code.cpu import native
from cdmpp.machine_code.cpu.code_vector import code_vector, readable_amounts
from cdmpp.machine_code.cpu.native import native_amounts, native_code
from cdmpp.programs.task import Program
from tests.machine_code import test_code_vector, test_flow

CORES = [name for name in core_names() if name != "neoverse_n1"]
LOOP = """
define i32 @main_compute_(ptr %a) {
entry:
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %x = load <8 x float>, ptr %a, align 4
  %next = add i64 %i, 1
  %stop = icmp eq i64 %next, TRIPS
  br i1 %stop, label %end, label %body
end:
  ret i32 0
}
"""
INSTRUCTIONS = """
vmovups %zmm3, 64(%rsp,%rax)
vmovups (%rdi), %ymm3 {%k1} {z}
vmovups (%rdi), %ymm3 {%k1}
vxorps %xmm0, %xmm0, %xmm0
vpermt2ps %zmm2, %zmm1, %zmm0
vshufps $1, %ymm2, %ymm1, %ymm0
vbroadcastss 8(%rsi), %zmm1
vpbroadcastq %rbx, %zmm9
vinsertps $16, 4(%rsi), %xmm1, %xmm1
vextractf32x4 $1, %zmm1, (%rsi)
vgatherqps (%rax,%zmm1,4), %ymm2 {%k1}
addl %eax, 8(%rdi)
subq $-128, %rdi
leaq .L5(%rip), %rdx
shlq $4, %rdx
vmaskmovps %ymm1, %ymm2, (%rdi)
vpmovzxbd (%rdi), %zmm1
vcvttps2dq %ymm1, %ymm2
movslq (%rdx), %rax
movslq %esi, %rsi
imull $3, %eax, %ecx
idivl %esi
callq *(%rax)
setb %al
cltq
vmovss .LCPI4_0(%rip), %xmm5
kmovw %eax, %k1
vpinsrd $1, 4(,%rax,4), %xmm1, %xmm1
rep stosq %rax, %es:(%rdi)
vmovq %rax, %xmm1
vmovhps 8(%rdi), %xmm1, %xmm1
"""
pytestmark = pytest.mark.skipif(native_code() is None, reason="no C++ compiler")


def assert_same(llvm_ir: str, assembly: str, core: str = "ice_lake") -> None:
    found = native_amounts(llvm_ir, assembly, get_core(core))
    assert found is not None, "not read"
    expected = readable_amounts(llvm_ir, assembly, get_core(core))
    assert {name: (found[name], value) for name, value in expected.items() if found[name] != value} == {}


def test_another_cache_gets_its_own_library(monkeypatch, tmp_path):
    builds = []
    monkeypatch.setattr(native, "compiled_once", lambda *_: builds.append(native.cache_root()) or "no such library")
    for folder in ("a", "b", "a"):
        monkeypatch.setenv("CDMPP_CACHE", str(tmp_path / folder))
        with (
            pytest.warns(RuntimeWarning, match="machine code cannot be read")
            if len(builds) < 2
            else contextlib.nullcontext()
        ):
            assert native_code() is None
    assert builds == [tmp_path / "a", tmp_path / "b"]


def looped(lines: list[str], trips: int = 50) -> str:
    body = "".join(f"\t{line.replace(' ', chr(9), 1)}\n" for line in lines)
    count = f"\tmovl\t${trips}, %r15d\n.LBB0_1:\n"
    return f"main_compute_:\n\txorl\t%eax, %eax\n{count}{body}\tdecl\t%r15d\n\tjne\t.LBB0_1\n\tretq\n.Lfunc_end0:\n"


def test_loops_of_random_instructions_take_the_same_cycles() -> None:
    generator = random.Random(0)
    for _ in range(40):
        trips = generator.choice((1, 2, 7, 100_000))
        assembly = looped(random_piece(generator), trips)
        assert_same(LOOP.replace("TRIPS", str(trips)), assembly, generator.choice(CORES))


@pytest.mark.parametrize("line", INSTRUCTIONS.strip().splitlines())
def test_single_instructions_are_the_same(line: str) -> None:
    assert_same(LOOP.replace("TRIPS", "50"), looped([line, line, "vaddps (%rdi), %ymm1, %ymm3"]))


@pytest.mark.parametrize("condition", ["%inside = icmp ult i64 %x, 5", "%inside = icmp eq i32 %data, 5"])
def test_branches_add_up_in_the_same_way(condition: str) -> None:
    twisted = (
        "main_compute_:\n\tmovl\t$9, %eax\n\ttestl\t%edi, %edi\n\tje\t.LBB0_B\n.LBB0_A:\n"
        "\tvaddps\t%ymm0, %ymm1, %ymm2\n"
        "\tcmpq\t$3, %rax\n\tja\t.LBB0_B\n.LBB0_C:\n\tvmovups\t%ymm0, (%rdi)\n"
        ".LBB0_B:\n\tvaddps\t%ymm2, %ymm1, %ymm2\n\tdecq\t%rax\n\tjne\t.LBB0_A\n\tretq\n.Lfunc_end0:\n"
    )
    assert_same(test_flow.PADDED.replace("CONDITION", condition), twisted)


def test_the_wrapper_is_read_behind_its_checks() -> None:
    head = "entry:\n  br i1 %bad, label %refuse, label %start\nrefuse:\n  call void @__tvm_set_raised(i32 1)\n"
    nest = test_code_vector.NEST.replace("entry:\n", head + "  ret i32 -1\nstart:\n").replace("%entry", "%start")
    machine = test_code_vector.MACHINE_CODE.replace(
        "main_compute_:\n",
        "__tvm_ffi_main:\n\ttestl\t%edi, %edi\n\tje\t.LBB3_0\n\tcallq\t__tvm_set_raised\n\tretq\n.LBB3_0:\n",
    )
    assert_same(nest.replace("main_compute_", "__tvm_ffi_main"), machine)
    assert_same(test_code_vector.NEST.replace("@main_compute_", "@__tvm_ffi_main") + test_code_vector.NEST, looped([]))


def test_real_programs_are_the_same() -> None:
    pytest.importorskip("tvm")
    from cdmpp.machine_code.cpu.compile import compiled
    from cdmpp.programs.sampling import sample_programs
    from tests.ast import programs, workloads

    made = [Program(*programs.matmul_cpu()), Program(*programs.softmax_cpu())]
    for make in (workloads.conv2d, workloads.max_pool, workloads.gather, workloads.layer_norm, workloads.half_matmul):
        made += sample_programs(workloads.task(make), programs.CPU, 6, seed=3)
    assert len(made) > 20
    for i, program in enumerate(made):
        assert_same(*compiled(program), CORES[i % len(CORES)])


def test_what_c_cannot_read_is_refused() -> None:
    core, loop, code = get_core("ice_lake"), LOOP.replace("TRIPS", "50"), looped(["vaddps (%rdi), %ymm1, %ymm3"])
    strange = code.replace("\tretq", "\tretq # \u00e9")
    assert native_amounts(loop, strange, core) is None
    with pytest.raises(DataError, match="library in C"):
        code_vector(loop, strange, core)
    for assembly in (code.replace("main_compute_", "other"), "main_compute_:\n\tvfmacc.vv v0, v8, v16\n\tret\n", ""):
        assert native_amounts(loop, assembly, core) is None
        with pytest.raises(DataError, match="no machine code of main_compute_ that can be read"):
            code_vector(loop, assembly, core)
    with pytest.raises(DataError, match="computes"):
        code_vector(loop.replace("main_compute_", "helper"), code, core)
    neon = "main_compute_:\n.LBB0_1:\n\tldr\tq0, [x1], #16\n\tsubs\tw8, w8, #1\n\tb.ne\t.LBB0_1\n\tret\n.Lfunc_end0:\n"
    assert native_amounts(loop, neon, core) is None
    assert np.isfinite(code_vector(loop, neon, get_core("neoverse_n1"))).all()


def test_without_a_compiler_there_is_no_code_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDMPP_NATIVE", "0")
    with pytest.raises(DataError, match="library in C"):
        code_vector(LOOP.replace("TRIPS", "50"), looped(["vaddps (%rdi), %ymm1, %ymm3"]), get_core("zen4"))


def test_the_readable_version_gives_the_same_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = LOOP.replace("TRIPS", "50"), looped(["vaddps (%rdi), %ymm1, %ymm3"]), get_core("zen4")
    native = code_vector(*arguments)
    monkeypatch.setattr(readable, "native_amounts", lambda *_: None)
    np.testing.assert_array_equal(code_vector(*arguments), native)
    assert math.isfinite(native.sum())


def random_piece(generator: random.Random) -> list[str]:
    """Chains, loads and stores through a few moving registers, so that places meet."""
    registers = ("%rdi", "%rsi", "%rax")

    def place() -> str:
        base, offset = generator.choice(registers), generator.choice((0, 4, 32, 64, 4096, 4100, 8192, -64))
        return f"{offset}({base})" if generator.random() < 0.7 else f"{offset}({base},%rcx,4)"

    def vector(kind: str = "y") -> str:
        return f"%{kind}mm{generator.randrange(6)}"

    forms = (
        lambda: f"vmovups {place()}, {vector()}",
        lambda: f"vmovups {vector()}, {place()}",
        lambda: f"vmovups {vector('z')}, {place()} {{%k1}}",
        lambda: f"vmovss {vector('x')}, {place()}",
        lambda: f"vaddss {place()}, {vector('x')}, {vector('x')}",
        lambda: f"vfmadd231ps {vector('z')}, {vector('z')}, {vector('z')}",
        lambda: f"vgatherdps (%rdi,%ymm7,4), {vector()} {{%k2}}",
        lambda: f"vscatterdps {vector()}, (%rdi,%ymm7,4) {{%k2}}",
        lambda: f"addq ${generator.choice((4, 64, 4096))}, {generator.choice(registers)}",
        lambda: (
            f"leaq {generator.choice((0, 64))}({generator.choice(registers)},%rcx,8), {generator.choice(registers)}"
        ),
        lambda: f"movq (%rbx), {generator.choice(registers)}",
        lambda: "vdivps %zmm1, %zmm2, %zmm3",
        lambda: "incq %rcx",
    )
    return [generator.choice(forms)() for _ in range(generator.randrange(3, 60))]
