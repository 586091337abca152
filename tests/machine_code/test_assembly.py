"""Assembly text to blocks."""

from __future__ import annotations

import pytest

from cdmpp.devices.cores import get_core
from cdmpp.errors import DataError
from cdmpp.machine_code.cpu.code_vector import code_vector
from tests.machine_code.flows import NOTHING, machine_flow

X86 = """
\t.text
\t.globl\tmain_compute_
main_compute_:
.Lfunc_begin0:
\t.loc\t1 0 0
\t.cfi_startproc
\ttestl\t%edi, %edi
\tje\t.LBB0_3
.Ltmp3:
\tmovl\t$4, %eax
\tjmp\t.LBB0_2
\tnop
.LBB0_2:                                # %body
\tdecl\t%eax
\tjne\t.LBB0_2
.LBB0_3:
\tretq
.LBB0_4:
\txorl\t%eax, %eax
.Lfunc_end0:
\t.size\tmain_compute_, .Lfunc_end0-main_compute_
.L__tvm_parallel_lambda:
.Lfunc_begin1:
\txorl\t%eax, %eax
\tretq
.Lfunc_end1:
.Ldebug_info_start0:
\t.byte\t1
"""
AARCH64 = """
\t.text
\t.globl\tmain_compute_                   // -- Begin function main_compute_
\t.p2align\t2
\t.type\tmain_compute_,@function
main_compute_:                          // @main_compute_
.Lfunc_begin0:
\t.cfi_startproc
// %bb.0:                               // %entry
\tcbz\tw0, .LBB0_3
.Ltmp3:
\tmov\tw8, #4                          // =0x4
\tb\t.LBB0_2
\tnop
.LBB0_2:                                // %body
                                        // =>This Inner Loop Header: Depth=1
\tldr\tq0, [x1], #16
\t//APP
\tsubs\tw8, w8, #1
\tb.ne\t.LBB0_2
\ttbnz\tw9, #31, .LBB0_2
\tbl\texpf
\tbic\tw9, w9, w8
.LBB0_3:
\tret
.LBB0_4:
\tbr\tx8
.LBB0_5:
\tb\tTVMBackendFreeWorkspace
.Lfunc_end0:
\t.size\tmain_compute_, .Lfunc_end0-main_compute_
\t.section\t.rodata,"a",@progbits
.LJTI0_0:
\t.byte\t(.LBB0_3-.LBB0_3)>>2
.L__tvm_parallel_lambda:
.Lfunc_begin1:
\tmov\tw0, wzr
\tret
.Lfunc_end1:
"""


def test_blocks_begin_at_labels_and_after_jumps() -> None:
    assert machine_flow(X86).lines == {
        "entry": ["testl %edi, %edi", "je .LBB0_3"],
        "entry+1": ["movl $4, %eax", "jmp .LBB0_2"],
        "entry+1+2": ["nop"],
        ".LBB0_2": ["decl %eax", "jne .LBB0_2"],
        ".LBB0_3": ["retq"],
        ".LBB0_4": ["xorl %eax, %eax"],
    }
    assert machine_flow(X86, "__tvm_parallel_lambda").lines == {"entry": ["xorl %eax, %eax", "retq"]}


def test_blocks_of_aarch64() -> None:
    flow = machine_flow(AARCH64)
    assert flow.lines == {
        "entry": ["cbz w0, .LBB0_3"],
        "entry+1": ["mov w8, #4", "b .LBB0_2"],
        "entry+1+2": ["nop"],
        ".LBB0_2": ["ldr q0, [x1], #16", "subs w8, w8, #1", "b.ne .LBB0_2"],
        ".LBB0_2+3": ["tbnz w9, #31, .LBB0_2"],
        ".LBB0_2+3+4": ["bl expf", "bic w9, w9, w8"],
        ".LBB0_3": ["ret"],
        ".LBB0_4": ["br x8"],
        ".LBB0_5": ["b TVMBackendFreeWorkspace"],
    }
    # Two loops around one block: that of the jump behind it, and its own.
    assert flow.bodies == {".LBB0_2": {".LBB0_2", ".LBB0_2+3"}}
    assert flow.runs["entry+1+2"] == flow.runs[".LBB0_4"] == 0  # nothing leads there
    assert machine_flow(AARCH64, "__tvm_parallel_lambda").lines == {"entry": ["mov w0, wzr", "ret"]}


@pytest.mark.parametrize("line", ["fmla\tv0.4s, v1.4s, v2.4s", "ldr\tq0, [x0, #16]", "mov\tw0, wzr"])
def test_aarch64_is_known_by_its_registers(line: str) -> None:
    assert machine_flow(f"main_compute_:\n\t{line}\n\tret\n").lines == {"entry": [line.replace("\t", " "), "ret"]}


@pytest.mark.parametrize(
    "line",
    [
        "fmadd.s\tfa0, fa1, fa2, fa0",  # RISC-V
        "vmla.f32\tq0, q1, d4[0]",  # 32-bit Arm
        "addi\ts0, sp, 16",
        "xvmaddasp\t0, 1, 2",  # Power
        "",
    ],
)
def test_other_processors_are_not_read(line: str) -> None:
    with pytest.raises(DataError, match="no machine code of main_compute_ that can be read"):
        code_vector(NOTHING, f"main_compute_:\n\t{line}\n\tret\n", get_core("ice_lake"))
