"""Assembly with a counter in front of every basic block: exact counts at the speed of the processor itself.

What single-stepping or an emulator counts, but of any instruction that the processor knows, AVX-512 included. A counter
is raised by moves alone: neither flags nor the stack change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

_LABEL = re.compile(r"([\w.$]+):")
_LAMBDA = ".L__tvm_parallel_lambda"
_ALIGN = "\t.p2align\t4"
_NO_CODE = (".Ltmp", ".Lfunc_begin", ".Ldebug", ".Linfo")
_X86 = """\tmovq\t%rax, -136(%rsp)
\tmovq\t{counts}+{at}(%rip), %rax
\tleaq\t1(%rax), %rax
\tmovq\t%rax, {counts}+{at}(%rip)
\tmovq\t-136(%rsp), %rax"""
_ARM = """\tstp\tx16, x17, [sp, #-256]
\tadrp\tx16, {counts}+{at}
\tldr\tx17, [x16, :lo12:{counts}+{at}]
\tadd\tx17, x17, #1
\tstr\tx17, [x16, :lo12:{counts}+{at}]
\tldp\tx16, x17, [sp, #-256]"""
_STORE = """
\t.bss
\t.p2align 4
\t.globl block_counts
\t.type block_counts,@object
\t.size block_counts, {bytes}
block_counts:
counts_of_blocks:
\t.zero {bytes}
\t.text
"""
_ARM_JUMPS = re.compile(r"(b|br|cbz|cbnz|tbz|tbnz|b\.\w+)\s")


class Block(NamedTuple):
    """Instructions that run one behind the other."""

    function: str
    lines: tuple[str, ...]
    """Without comments, a space for the tab behind the name."""


class Counted(NamedTuple):
    """A program that counts how often its blocks run."""

    assembly: str
    blocks: tuple[Block, ...]

    def runs_by_function(self, runs: Sequence[int]) -> Mapping[str, list[tuple[str, int]]]:
        """Name of a function that computes -> its instructions in the order of the text, with how often each ran."""
        found: dict[str, list[tuple[str, int]]] = {}
        for block, often in zip(self.blocks, runs, strict=True):
            found.setdefault(block.function, []).extend((line, often) for line in block.lines)
        return found


def computes(function: str) -> bool:
    """Return True for functions whose instructions are counted: no wrappers."""
    return "compute_" in function or "__tvm_parallel_lambda" in function


def plain(assembly: str) -> Iterator[str]:
    """Lines without those for debuggers and the alignment of loops, and with a symbol for what threads run.

    Of data, alignment is written in another way.
    """
    for line in assembly.splitlines():
        if line != _ALIGN and not line.startswith(("\t.file", "\t.loc", "\t.cfi")):
            yield line.replace(_LAMBDA, _LAMBDA.removeprefix(".L"))


def counting(assembly: str, arm: bool = False) -> Counted:
    """The program with its counters, which ``block_counts`` names, in the order of the blocks."""
    out: list[str] = []
    blocks: list[tuple[str, list[str]]] = []
    function, begins = "", True
    for line in plain(assembly):
        label = _LABEL.match(line)
        if label:
            name = label[1]
            if name.startswith(".Lfunc_end"):
                function = ""
            elif name.startswith(".LBB"):
                begins = True
            elif not name.startswith((*_NO_CODE, ".LCPI", ".LJTI")):
                function = name.removeprefix(".L")
                begins = True
        elif computes(function) and _is_instruction(line, arm):
            text = _text(line, arm)
            if begins:
                blocks.append((function, []))
                out.append((_ARM if arm else _X86).format(counts="counts_of_blocks", at=8 * (len(blocks) - 1)))
            blocks[-1][1].append(text)
            begins = bool(_ARM_JUMPS.match(text)) if arm else text[0] == "j"
        out.append(line)
    store = _STORE.format(bytes=8 * max(len(blocks), 1))
    return Counted("\n".join(out) + store, tuple(Block(name, tuple(lines)) for name, lines in blocks))


def _is_instruction(line: str, arm: bool) -> bool:
    return line.startswith("\t") and not line.startswith(("\t.", "\t//" if arm else "\t#"))


def _text(line: str, arm: bool) -> str:
    return line.split("//" if arm else "#")[0].strip().replace("\t", " ", 1)
