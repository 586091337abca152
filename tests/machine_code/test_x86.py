"""What single instructions are taken for."""

from __future__ import annotations

import pytest

from cdmpp.features import names
from cdmpp.machine_code.code_features import KINDS
from cdmpp.machine_code.x86 import decode


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "vfmadd231ps (%rdi,%rcx,4), %ymm1, %ymm0",
            {"kind": "fma", "ports": (0, 1), "latency": 4, "slots": 1, "loads": True, "stores": False, "width": 32},
        ),
        ("vfmadd231ps %zmm2, %zmm1, %zmm0", {"ports": (0, 5), "reads": ("v0", "v1", "v2"), "writes": ("v0",)}),
        ("vaddss %xmm2, %xmm1, %xmm0", {"kind": "fadd", "scalar": True, "reads": ("v1", "v2")}),
        ("vmovups %zmm3, 64(%rsp,%rax)", {"kind": "move", "ports": (), "stores": True, "spills": True, "slots": 1}),
        (
            "vmovups -128(%rdi), %ymm3",
            {"loads": True, "address": ("(%rdi)", -128), "writes": ("v3",), "reads": ("rdi",)},
        ),
        ("vmovups (%rdi), %ymm3 {%k1} {z}", {"reads": ("k1", "rdi"), "writes": ("v3",)}),
        ("vmovups (%rdi), %ymm3 {%k1}", {"reads": ("k1", "rdi", "v3")}),
        ("vxorps %xmm0, %xmm0, %xmm0", {"kind": "move", "ports": (), "latency": 0, "reads": ()}),
        ("vpermt2ps %zmm2, %zmm1, %zmm0", {"kind": "shuffle", "ports": (5,), "reads": ("v0", "v1", "v2")}),
        ("vshufps $1, %ymm2, %ymm1, %ymm0", {"kind": "shuffle", "ports": (1, 5), "latency": 1}),
        ("vbroadcastss 8(%rsi), %zmm1", {"kind": "move", "ports": (), "loads": True}),
        ("vbroadcastss %xmm1, %zmm1", {"kind": "shuffle", "ports": (5,)}),
        ("vpbroadcastq %rbx, %zmm9", {"kind": "transfer", "reads": ("rbx",)}),
        ("vinsertps $16, 4(%rsi), %xmm1, %xmm1", {"kind": "shuffle", "loads": True}),
        ("vextractf32x4 $1, %zmm1, (%rsi)", {"kind": "move", "stores": True, "loads": False}),
        ("vgatherdps (%rax,%zmm1,4), %zmm2 {%k1}", {"kind": "gather", "lanes": 16, "loads": True, "stores": False}),
        ("vgatherqps (%rax,%zmm1,4), %ymm2 {%k1}", {"kind": "gather", "lanes": 8}),
        ("vscatterqps %ymm2, (%rax,%zmm1,4) {%k1}", {"kind": "scatter", "lanes": 8, "busy": 8, "stores": True}),
        ("vdivps %zmm2, %zmm1, %zmm0", {"kind": "divide", "busy": 10}),
        ("addq $16, %rcx", {"kind": "int", "reads": ("rcx",), "writes": ("flags", "rcx")}),
        ("addl %eax, 8(%rdi)", {"loads": True, "stores": True, "reads": ("rax", "rdi")}),
        ("cmpq $128, %rcx", {"reads": ("rcx",), "writes": ("flags",)}),
        ("leaq 8(%rax,%rbx,2), %rdx", {"address": None, "loads": False, "reads": ("rax", "rbx"), "writes": ("rdx",)}),
        ("movl %r8d, %r10d", {"kind": "int_move", "ports": (), "reads": ("r8",), "writes": ("r10",)}),
        ("movslq (%rdx), %rax", {"kind": "int", "loads": True}),
        (
            "imull $3, %eax, %ecx",
            {"kind": "int_multiply", "ports": (1,), "reads": ("rax",), "writes": ("flags", "rcx")},
        ),
        ("idivl %esi", {"kind": "int_divide", "reads": ("rax", "rdx", "rsi"), "writes": ("rax", "rdx")}),
        ("jne .LBB0_2", {"kind": "branch", "reads": ("flags",), "writes": (), "address": None}),
        ("callq *(%rax)", {"kind": "call", "loads": True, "slots": 40}),
        ("setb %al", {"reads": ("flags",), "writes": ("rax",)}),
        ("vmovss .LCPI4_0(%rip), %xmm5", {"loads": True, "spills": False, "scalar": True, "kind": "move"}),
        ("kmovw %eax, %k1", {"kind": "mask", "reads": ("rax",), "writes": ("k1",)}),
    ],
)
def test_decoding(line: str, expected: dict[str, object]) -> None:
    found = decode(line)
    assert {name: getattr(found, name) for name in expected} == expected
    assert f"is_{found.kind}" in names(KINDS)


@pytest.mark.parametrize(
    "names", [("rax", "eax", "ax", "al"), ("r9", "r9d", "r9w", "r9b"), ("rsi", "esi", "si", "sil")]
)
def test_parts_of_a_register_are_one(names: tuple[str, ...]) -> None:
    assert {decode(f"mov %{name}, %{name}").reads for name in names} == {(names[0],)}
    assert decode("vmovaps %xmm17, %xmm17").reads == decode("vmovaps %zmm17, %zmm17").reads == ("v17",)
