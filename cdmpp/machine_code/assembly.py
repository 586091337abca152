"""x86-64 assembly text -> functions of basic blocks. What the compiler really emitted: registers given, spills made."""

from __future__ import annotations

import re

from cdmpp.machine_code.block_graph import BlockGraph

_LABEL = re.compile(r"^([\w.$]+):")
_JUMP = re.compile(r"j(\w+)\s+(\S+)")
_NO_CODE = (".Ltmp", ".Lfunc_begin", ".LCPI", ".Ldebug", ".Linfo")
_X86 = re.compile(r"%[re](?:sp|ax|di)\b")


class AsmFunction(BlockGraph):
    """A function of machine code."""

    def targets(self, name: str, following: str) -> list[str]:
        """Where its last jump goes, and the next block of the text where it may go on."""
        last = (self.blocks[name] or [""])[-1]
        jump = _JUMP.match(last)
        goes_on = not last.startswith("ret") and (jump is None or jump[1] != "mp")
        return [*([jump[2]] if jump else []), *([following] if goes_on else [])]


def parse_assembly(text: str) -> dict[str, AsmFunction]:
    """Functions by their name in the IR; none where the text is not AT&T syntax of x86-64."""
    if not _X86.search(text):
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
            functions[name] = AsmFunction(name, blocks)
        elif blocks is not None and raw.startswith("\t") and not raw.startswith(("\t.", "\t#")):
            if blocks[current] and _JUMP.match(blocks[current][-1]):
                splits += 1
                current = f"{current}+{splits}"
                blocks[current] = []
            blocks[current].append(raw.strip().replace("\t", " ", 1))
    return {name: function for name, function in functions.items() if any(function.blocks.values())}
