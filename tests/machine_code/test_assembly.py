"""Assembly text to blocks."""

from __future__ import annotations

from cdmpp.machine_code.assembly import parse_assembly

TEXT = """
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


def test_blocks_begin_at_labels_and_after_jumps() -> None:
    functions = parse_assembly(TEXT)
    assert list(functions) == ["main_compute_", "__tvm_parallel_lambda"]
    main = functions["main_compute_"]
    assert main.blocks == {
        "entry": ["testl %edi, %edi", "je .LBB0_3"],
        "entry+1": ["movl $4, %eax", "jmp .LBB0_2"],
        "entry+1+2": ["nop"],
        ".LBB0_2": ["decl %eax", "jne .LBB0_2"],
        ".LBB0_3": ["retq"],
        ".LBB0_4": ["xorl %eax, %eax"],
    }
    assert main.successors == {
        "entry": [".LBB0_3", "entry+1"],
        "entry+1": [".LBB0_2"],
        "entry+1+2": [".LBB0_2"],
        ".LBB0_2": [".LBB0_2", ".LBB0_3"],
        ".LBB0_3": [],
        ".LBB0_4": [],
    }
    assert list(main.graph.pred[".LBB0_2"]) == ["entry+1", "entry+1+2", ".LBB0_2"]


def test_other_processors_are_not_read() -> None:
    assert parse_assembly("f:\n\tfmla\tv0.4s, v1.4s, v2.4s\n\tret\n") == {}
    assert parse_assembly("") == {}
