"""What single instructions are taken for."""

from __future__ import annotations

import pytest

from cdmpp.features import names
from cdmpp.machine_code.cpu.code_features import KINDS
from tests.machine_code.decoding import decode


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "vfmadd231ps (%rdi,%rcx,4), %ymm1, %ymm0",
            {
                "name": "fma",
                "loads": True,
                "stores": False,
                "width": 32,
                "moved": 32,
                "terms": (("rdi", 1), ("rcx", 4)),
            },
        ),
        ("vfmadd231ps %zmm2, %zmm1, %zmm0", {"width": 64, "reads": ("v0", "v1", "v2"), "writes": ("v0",)}),
        ("vaddss %xmm2, %xmm1, %xmm0", {"kind": "fadd", "scalar": True, "reads": ("v1", "v2")}),
        ("vmovups %zmm3, 64(%rsp,%rax)", {"name": "move", "stores": True, "spills": True}),
        (
            "vmovups -128(%rdi), %ymm3",
            {"loads": True, "address": -128, "writes": ("v3",), "reads": ("rdi",)},
        ),
        ("vmovups (%rdi), %ymm3 {%k1} {z}", {"reads": ("k1", "rdi"), "writes": ("v3",)}),
        ("vmovups (%rdi), %ymm3 {%k1}", {"reads": ("k1", "rdi", "v3")}),
        ("vxorps %xmm0, %xmm0, %xmm0", {"name": "move", "reads": ()}),
        ("vpermt2ps %zmm2, %zmm1, %zmm0", {"name": "shuffle", "reads": ("v0", "v1", "v2")}),
        ("vshufps $1, %ymm2, %ymm1, %ymm0", {"name": "light_shuffle", "kind": "shuffle"}),
        ("vbroadcastss 8(%rsi), %zmm1", {"name": "move", "loads": True, "moved": 4}),
        ("vbroadcastss %xmm1, %zmm1", {"name": "shuffle"}),
        ("vpbroadcastq %rbx, %zmm9", {"kind": "transfer", "reads": ("rbx",)}),
        ("vinsertps $16, 4(%rsi), %xmm1, %xmm1", {"kind": "shuffle", "loads": True}),
        ("vextractf32x4 $1, %zmm1, (%rsi)", {"kind": "move", "stores": True, "loads": False}),
        ("vgatherdps (%rax,%zmm1,4), %zmm2 {%k1}", {"kind": "gather", "lanes": 16, "loads": True, "stores": False}),
        ("vgatherqps (%rax,%zmm1,4), %ymm2 {%k1}", {"kind": "gather", "lanes": 8}),
        ("vscatterqps %ymm2, (%rax,%zmm1,4) {%k1}", {"kind": "scatter", "lanes": 8, "stores": True}),
        ("vdivps %zmm2, %zmm1, %zmm0", {"kind": "divide", "width": 64}),
        (
            "addq $16, %rcx",
            {"kind": "int", "reads": ("rcx",), "writes": ("flags", "rcx"), "assigns": ("rcx", (("rcx", 1),), 16)},
        ),
        ("addl %eax, 8(%rdi)", {"loads": True, "stores": True, "reads": ("rax", "rdi")}),
        ("cmpq $128, %rcx", {"reads": ("rcx",), "writes": ("flags",)}),
        ("leaq 8(%rax,%rbx,2), %rdx", {"address": None, "loads": False, "reads": ("rax", "rbx"), "writes": ("rdx",)}),
        ("leaq 8(%rax,%rbx,2), %rdx", {"assigns": ("rdx", (("rax", 1), ("rbx", 2)), 8)}),
        ("leaq .L5(%rip), %rdx", {"assigns": None}),
        ("movq %rax, %rdx", {"assigns": ("rdx", (("rax", 1),), 0)}),
        ("shlq $4, %rdx", {"assigns": ("rdx", (("rdx", 16),), 0)}),
        ("vmaskmovps %ymm1, %ymm2, (%rdi)", {"name": "move", "stores": True, "loads": False, "masked": True}),
        ("vmovups %zmm1, (%rdi) {%k1}", {"stores": True, "masked": True, "moved": 64}),
        ("vmovaps %zmm1, %zmm2 {%k1}", {"masked": False}),
        ("vpmovzxbd (%rdi), %zmm1", {"loads": True, "moved": 16}),
        ("movl %r8d, %r10d", {"name": "int_move", "reads": ("r8",), "writes": ("r10",)}),
        ("movslq (%rdx), %rax", {"kind": "int", "loads": True}),
        (
            "imull $3, %eax, %ecx",
            {"kind": "int_multiply", "reads": ("rax",), "writes": ("flags", "rcx")},
        ),
        ("idivl %esi", {"kind": "int_divide", "reads": ("rax", "rdx", "rsi"), "writes": ("rax", "rdx")}),
        ("jne .LBB0_2", {"kind": "branch", "reads": ("flags",), "writes": (), "address": None}),
        ("callq *(%rax)", {"kind": "call", "loads": True}),
        ("setb %al", {"reads": ("flags",), "writes": ("rax",)}),
        ("vmovss .LCPI4_0(%rip), %xmm5", {"loads": True, "spills": False, "scalar": True, "kind": "move"}),
        ("kmovw %eax, %k1", {"kind": "mask", "reads": ("rax",), "writes": ("k1",)}),
        ("mulps (%rdi), %xmm1", {"kind": "fma", "loads": True, "reads": ("rdi", "v1"), "writes": ("v1",), "moved": 16}),
        ("addss %xmm2, %xmm1", {"kind": "fadd", "scalar": True, "reads": ("v1", "v2"), "writes": ("v1",)}),
        ("maxps %xmm2, %xmm1", {"kind": "fmax", "reads": ("v1", "v2")}),
        ("movups %xmm2, 16(%rdi)", {"kind": "move", "stores": True, "loads": False, "moved": 16}),
        ("movss (%rdi), %xmm2", {"kind": "move", "scalar": True, "reads": ("rdi",), "writes": ("v2",), "moved": 4}),
        ("movss %xmm1, %xmm2", {"reads": ("v1", "v2"), "writes": ("v2",)}),
        ("movaps %xmm1, %xmm2", {"kind": "move", "reads": ("v1",), "writes": ("v2",)}),
        ("pshufd $68, %xmm1, %xmm2", {"kind": "shuffle", "reads": ("v1",), "writes": ("v2",)}),
        ("shufps $232, %xmm1, %xmm2", {"kind": "shuffle", "reads": ("v1", "v2"), "writes": ("v2",)}),
        ("xorps %xmm2, %xmm2", {"kind": "move", "reads": ()}),
        ("pextrd $1, %xmm0, (%rdi)", {"stores": True, "loads": False, "moved": 4}),
        ("movd %ecx, %xmm0", {"kind": "transfer", "reads": ("rcx",), "writes": ("v0",)}),
        ("divps %xmm2, %xmm1", {"kind": "divide", "reads": ("v1", "v2")}),
        ("ucomiss %xmm2, %xmm1", {"reads": ("v1", "v2"), "writes": ("flags",)}),
        ("cvtsi2ss %eax, %xmm1", {"kind": "convert", "reads": ("rax", "v1")}),
        ("cvttss2si (%rdi), %eax", {"kind": "convert", "loads": True, "writes": ("rax",)}),
        ("vpmaxsd (%rdi), %ymm1, %ymm2", {"loads": True, "moved": 32, "scalar": False}),
        ("vaddsd %xmm2, %xmm1, %xmm0", {"kind": "fadd", "scalar": True}),
        ("vpmovqd %ymm3, 416(%rsp)", {"stores": True, "loads": False}),
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
