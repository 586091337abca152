"""Assembly text -> functions of basic blocks. What the compiler really emitted: registers given, spills made."""

from __future__ import annotations

import re
from typing import ClassVar

from cdmpp.machine_code.cpu.block_graph import BlockGraph

_LABEL = re.compile(r"^([\w.$]+):")
_NO_CODE = (".Ltmp", ".Lfunc_begin", ".LCPI", ".Ldebug", ".Linfo")


class AsmFunction(BlockGraph):
    """A function of machine code, of one of ``LANGUAGES``."""

    language: ClassVar[str]
    """A key of ``instruction_set.DECODERS``."""
    mark: ClassVar[re.Pattern[str]]
    """What is found in programs of this instruction set alone."""
    comment: ClassVar[str]
    jump: ClassVar[re.Pattern[str]]
    """A line that ends a block, and its ``target``; ``always`` where it does not go on with the next block."""

    def targets(self, name: str, following: str) -> list[str]:
        """Where its last jump goes, and the next block of the text where it may go on."""
        last = (self.blocks[name] or [""])[-1]
        jump = self.jump.match(last)
        goes_on = not last.startswith("ret") and not (jump and jump["always"])
        return [*([jump["target"]] if jump else []), *([following] if goes_on else [])]


class X86Function(AsmFunction):
    """In AT&T syntax."""

    language = "x86_64"
    mark = re.compile(r"%[re](?:sp|ax|di)\b")
    comment = "#"
    jump = re.compile(r"j(?:(?P<always>mp)q?|\w+)\s+(?P<target>\S+)")


class AArch64Function(AsmFunction):
    """In the syntax of ELF assemblers."""

    language = "aarch64"
    mark = re.compile(r"^\t[a-z][\w.]*\t[^/\n]*?\b(?:[xw](?:[12]?\d|30)|v[123]?\d\.\d*[bhsd])\b", re.MULTILINE)
    comment = "//"
    jump = re.compile(r"(?:(?P<always>br?)|b\.\w+|cbn?z|tbn?z)\s+(?:.*,\s*)?(?P<target>\S+)$")


LANGUAGES = (X86Function, AArch64Function)


def parse_assembly(text: str) -> dict[str, AsmFunction]:
    """Functions by their name in the IR; none where the text is of neither x86-64 (AT&T syntax) nor AArch64 (ELF)."""
    kind = next((kind for kind in LANGUAGES if kind.mark.search(text)), None)
    if kind is None:
        return {}
    functions: dict[str, AsmFunction] = {}
    blocks: dict[str, list[str]] | None = None
    current, splits = "", 0
    for raw in text.splitlines():
        label = _LABEL.match(raw)
        if label and label[1].startswith(".Lfunc_end"):
            blocks = None
        elif label and label[1].startswith(".LBB"):
            if blocks is not None:
                current = label[1]
                blocks[current] = []
        elif label and not label[1].startswith(_NO_CODE):
            name = label[1].removeprefix(".L")
            current, blocks = "entry", {"entry": []}
            functions[name] = kind(name, blocks)
        elif blocks is not None and raw.startswith("\t") and not raw.startswith(("\t.", "\t" + kind.comment)):
            if blocks[current] and kind.jump.match(blocks[current][-1]):
                splits += 1
                current = f"{current}+{splits}"
                blocks[current] = []
            blocks[current].append(raw.partition(kind.comment)[0].strip().replace("\t", " ", 1))
    return {name: function for name, function in functions.items() if any(function.blocks.values())}
