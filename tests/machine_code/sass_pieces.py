"""Kernels of SASS: the stored listings, and ones of given or random instructions."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

from cdmpp.machine_code.gpu.launch import Launch
from cdmpp.machine_code.gpu.sass import Control, SassKernel, SassLine, parse_sass

LISTINGS = Path(__file__).parent / "sass"
LITERALS = bytes.fromhex("12030000")
NAMES = sorted(path.name.removesuffix(".txt.gz") for path in LISTINGS.iterdir())
LAUNCHES = {"matmul": Launch((128, 1, 1), (32, 1, 1)), "elementwise": Launch((785, 1, 1), (1024, 1, 1)),
            "conv2d": Launch((49, 1, 1), (64, 1, 1))}  # fmt: skip
ONE_WARP_A_BLOCK = Launch((4, 1, 1), (32, 1, 1))


def kernel(name: str) -> SassKernel:
    """A stored listing of nvcc 13.0, by the name of its file."""
    (found,) = parse_sass(gzip.decompress((LISTINGS / f"{name}.txt.gz").read_bytes()).decode()).values()
    return found


def launch_of(name: str) -> Launch:
    """How the kernel of a stored listing is launched."""
    return LAUNCHES[name.split("_")[0]]


def written(*texts: str, stack_bytes: int = 0, arch: int = 80) -> SassKernel:
    """A kernel of such instructions, each of which waits for nothing."""
    lines = []
    for text in texts:
        guard, _, text = text.rpartition("@ ") if text.startswith("@") else ("", "", text)
        head, _, rest = text.partition(" ")
        opcode, *modifiers = head.split(".")
        operands = tuple(part.strip() for part in rest.split(",")) if rest else ()
        lines.append(SassLine(guard.lstrip("@"), opcode, tuple(modifiers), operands, 0, Control(1, False, 7, 7, 0)))
    return SassKernel("kernel", arch, 32, stack_bytes, 0, tuple(lines))


_TEMPLATES = (
    "IADD3 {d}, P0, {a}, {b}, {c}",
    "IADD3.X {d}, {a}, {b}, {c}, {p}, !PT",
    "IMAD {d}, {a}, {b}, {c}",
    "IMAD.WIDE{unsigned} R2, P1, {a}, {b}, R4",
    "IMAD.HI{unsigned} {d}, {a}, {b}, R6",
    "LEA {d}, P1, {a}, {b}, {few}",
    "LEA.HI {d}, {a}, {b}, {c}, {few}",
    "LEA.HI.SX32 {d}, {a}, {b}, {few}",
    "SHF.L.U32 {d}, {a}, {shift}, RZ",
    "SHF.L.U64.HI {d}, {a}, {shift}, {b}",
    "SHF.R.{word}.HI {d}, RZ, {shift}, {a}",
    "SHF.R.{wide} {d}, {a}, {shift}, {b}",
    "LOP3.LUT P1, {d}, {a}, {b}, {c}, {table}, !PT",
    "PLOP3.LUT P0, P1, P0, {p}, PT, {table}, {table}",
    "ISETP.{order}{unsigned}.{join} P0, P1, {a}, {b}, {p}",
    "ISETP.{order}.U32.AND.EX P0, PT, {a}, {b}, PT, P1",
    "SEL {d}, {a}, {b}, {p}",
    "IMNMX{unsigned} {d}, {a}, {b}, {p}",
    "IABS {d}, {a}",
    "PRMT {d}, {a}, {bytes}, {c}",
    "SGXT{unsigned} {d}, {a}, {shift}",
    "BMSK {d}, {shift}, {b}",
    "IDP.2A.{half}.U16.U8 {d}, {a}, {b}, {c}",
    "POPC {d}, {a}",
    "P2R {d}, PR, {a}, {mask}",
    "R2P PR, {a}, {two}",
    "@{p}@ MOV {d}, {b}",
)


def random_kernel(seed: int) -> SassKernel:
    """Random integer arithmetic. What the registers hold at the end shows in the banks that it loads from."""
    generator = random.Random(seed)
    choice, below = generator.choice, generator.randrange

    def register() -> str:
        return f"R{below(8)}"

    def operand() -> str:
        return choice((choice(("", "-", "~")) + register(), hex(below(2**32)), "RZ"))

    def instruction() -> str:
        return choice(_TEMPLATES).format(
            d=register(), a=register(), b=operand(), c=operand(), p=choice(("P0", "!P0", "P1", "PT", "!PT")),
            unsigned=choice(("", ".U32")), few=hex(below(32)), shift=choice((hex(below(41)), register())),
            word=choice(("S32", "U32")), wide=choice(("S64", "U64", "U32")), table=hex(below(256)),
            order=choice(("LT", "EQ", "LE", "GT", "NE", "GE")), join=choice(("AND", "OR", "XOR")),
            bytes=hex(below(65536)), half=choice(("LO", "HI")), mask=hex(below(128)), two=hex(below(4)),
        )  # fmt: skip

    begin = [
        "S2R R0, SR_TID.X",
        "S2R R1, SR_CTAID.X",
        *(f"IMAD R{n}, R0, {hex(0x9E3779B1 * n & 0xFFFFFFFF)}, R1" for n in range(2, 8)),
    ]
    ends = [f"@P{n}@ LDS R20, [R0]" for n in range(2)] + [f"LDS.64 R20, [R{n}]" for n in range(8)]
    return written(*begin, *(instruction() for _ in range(1 + below(30))), *ends, "EXIT")
