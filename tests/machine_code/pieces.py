"""Small programs of x86-64 machine code: a loop around given or random instructions, and the IR that it was made of."""

from __future__ import annotations

import random

_LOOP = """
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
""".strip().splitlines()


def loop_ir(trips: int = 50) -> str:
    """A loop of the IR that loads eight floats in each of its trips."""
    return _LOOP.replace("TRIPS", str(trips))


def looped(lines: list[str], trips: int = 50) -> str:
    """Assembly of a loop around ``lines``."""
    body = "".join(f"\t{line.replace(' ', chr(9), 1)}\n" for line in lines)
    count = f"\tmovl\t${trips}, %r15d\n.LBB0_1:\n"
    return f"main_compute_:\n\txorl\t%eax, %eax\n{count}{body}\tdecl\t%r15d\n\tjne\t.LBB0_1\n\tretq\n.Lfunc_end0:\n"


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
