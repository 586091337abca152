"""Instructions of vector and mask registers, carried out on paper: what a Xeon with AVX-512 made of the same inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machine_code.flows import machine_flow

CASES = (Path(__file__).parents[1] / "fixtures" / "vector_registers.txt").read_text().splitlines()
"""Lines of ``instructions -> register`` and its 64-bit parts in hexadecimal, the lowest first; zeros above left out."""
INPUTS = {
    "C": "1111111122222222 3333333344444444 5555555566666666 7777777788888888 "
    "99999999aaaaaaaa bbbbbbbbcccccccc ddddddddeeeeeeee 0f0f0f0ff0f0f0f0",
    "A": "180000000 7fffffffffffffff ff00017f80fe03 0 ffffffffffffffff 8000000000000000 500000003 123456789abcdef",
    "B": "100000002 7fffffffffffffff ff80017f7f01fd 1 3 4000000000000001 300000005 fedcba9876543210",
    "D": "80007fff80000001 ff00ff00ff00ff00 80808080 8000000000000000 1 2 3 4",
}
"""What ``%zmm0`` to ``%zmm3`` hold before."""
MASKS = {"k1": 0xA5C3F00F12345679, "k3": 0x0FF05AA5FFFF8007, "k2": 0}
SCALARS = {"rsi": 0x89ABCDEF01234567, "rdx": 13}


def signed(number: int) -> int:
    """How an assembler writes 64 bits."""
    return number - (1 << 64) if number >> 63 else number


def numbers(words: str) -> list[int]:
    return [int(word, 16) for word in words.split()]


SETUP = [
    "subq $512, %rsp",
    *(line for name, bits in MASKS.items() for line in (f"movabsq ${signed(bits)}, %rax", f"kmovq %rax, %{name}")),
    *(f"movabsq ${signed(bits)}, %{name}" for name, bits in SCALARS.items()),
    *(f"vmovdqu64 .LCPI0_{name}(%rip), %zmm{number}" for number, name in enumerate(INPUTS)),
]


def function(lines: list[str]) -> str:
    """Assembly of constants and of a function of these lines."""
    constants = "".join(
        f".LCPI0_{name}:\n" + "".join(f"\t.quad\t{signed(number)}\n" for number in numbers(words))
        for name, words in INPUTS.items()
    )
    body = "".join(f"{line if line.endswith(':') else chr(9) + line.replace(' ', chr(9), 1)}\n" for line in lines)
    return f"{constants}main_compute_:\n{body}.Lfunc_end0:\n"


def comparing(case: str) -> list[str]:
    """A function that gets to ``.LBB0_right`` if the instructions of a case give what it says."""
    code, result = case.split(" -> ")
    register, words = result.split(maxsplit=1)
    expected = numbers(words)
    if register == "%zmm0":
        expected += [0] * (8 - len(expected))
    lines = SETUP + code.split("; ") + ([] if register == "%rax" else ["vmovdqu64 %zmm0, 256(%rsp)"])
    for i, number in enumerate(expected):
        part = "%rax" if register == "%rax" else f"{256 + 8 * i}(%rsp)"
        lines += [f"movq {part}, %r9", f"movabsq ${signed(number)}, %r8", "cmpq %r8, %r9", "jne .LBB0_wrong"]
    return [*lines, ".LBB0_right:", "xorl %eax, %eax", "retq", ".LBB0_wrong:", "movl $1, %eax", "retq"]


def test_instructions_give_what_a_processor_gave() -> None:
    assert len(CASES) > 450
    flows = {case: machine_flow(function(comparing(case))) for case in CASES}
    assert [case for case, flow in flows.items() if flow.unknown or flow.runs[".LBB0_right"] != 1] == []


@pytest.mark.parametrize(
    "data", ["vmovdqu (%rdi), %ymm0", "vcmpltps %ymm1, %ymm2, %ymm0", "vpinsrd $1, (%rdi), %xmm1, %xmm0"]
)
def test_what_data_decide_stays_unknown(data: str) -> None:
    lines = [
        *SETUP,
        data,
        "vpmovmskb %ymm0, %eax",
        "testl %eax, %eax",
        "je .LBB0_2",
        ".LBB0_1:",
        "vaddps %ymm0, %ymm1, %ymm2",
    ]
    assert machine_flow(function([*lines, ".LBB0_2:", "xorl %eax, %eax", "retq"])).unknown > 0


@pytest.mark.parametrize("instruction", ["vmovups %ymm1, (%rsi,%r9) {%k1}", "vptestnmb %xmm1, %xmm1, %k2"])
def test_registers_of_an_address_and_flags_stay(instruction: str) -> None:
    """A masked store writes to no register of its address; tests of lanes into a mask leave the flags alone."""
    lines = ["movl $12, %r9d", ".LBB0_1:", "vaddps %ymm0, %ymm1, %ymm2", "subq $4, %r9", instruction, "jne .LBB0_1"]
    flow = machine_flow(function([*lines, ".LBB0_2:", "xorl %eax, %eax", "retq"]))
    assert (flow.unknown, flow.runs[".LBB0_1"]) == (0, 3)
