"""LLVM IR text -> functions of basic blocks, as far as counting instructions needs it. No LLVM is called."""

from __future__ import annotations

import re
from functools import cached_property
from typing import NamedTuple

from cdmpp.machine_code.cpu.block_graph import BlockGraph

_NAME = r'%"?[\w.$-]+"?'
_DEFINE = re.compile(r"^define .*@([\w.]+)\(")
_LABEL = re.compile(r'^([\w.$-]+|"[^"]+"):')
_METADATA = re.compile(r", !(?:dbg|prof|tbaa|llvm\.loop|noalias|alias\.scope|range|nonnull)[^,]*")
_ASSIGNED = re.compile(rf"({_NAME}) = (.*)")
_TARGETS = re.compile(r'label %("?[\w.$-]+"?)')


class Definition(NamedTuple):
    """What an SSA value is."""

    text: str
    """The instruction behind the equals sign."""
    block: str


class Function(BlockGraph):
    """A function of LLVM IR."""

    def targets(self, name: str, following: str) -> list[str]:
        """All labels in it."""
        return [t.strip('"') for line in self.blocks[name] if "label %" in line for t in _TARGETS.findall(line)]

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        """SSA name (with its percent sign) -> definition."""
        return {
            match[1]: Definition(match[2], block)
            for block, instructions in self.blocks.items()
            for line in instructions
            if (match := _ASSIGNED.match(line))
        }


def parse(text: str) -> list[Function]:
    """The functions that ``text`` defines, without debug records and metadata."""
    functions: list[Function] = []
    blocks: dict[str, list[str]] | None = None
    current = ""
    for raw in text.splitlines():
        if blocks is None:
            if match := _DEFINE.match(raw):
                blocks, current = {}, "entry"
                functions.append(Function(match[1], blocks))
            continue
        if raw == "}":
            blocks = None
            continue
        line = raw.strip()
        if not line or line.startswith((";", "#dbg")):
            continue
        if match := _LABEL.match(raw):
            current = match[1].strip('"')
            blocks[current] = []
        else:
            blocks.setdefault(current, []).append(_METADATA.sub("", line) if "!" in line else line)
    return functions
