"""The instruction sets that machine code is read in."""

from __future__ import annotations

from collections.abc import Callable

from cdmpp.errors import DataError
from cdmpp.machine_code.cpu import aarch64, x86
from cdmpp.machine_code.cpu.operation import Operation

DECODERS: dict[str, Callable[[str], Operation]] = {"x86_64": x86.decode, "aarch64": aarch64.decode}
"""``AsmFunction.language`` -> what reads one of its lines."""


def decoder(language: str) -> Callable[[str], Operation]:
    """What reads one line of a function in ``language``; ``DataError`` where nothing does."""
    if language not in DECODERS:
        raise DataError(f"machine code is read in {' and '.join(DECODERS)}, not in {language!r}")
    return DECODERS[language]
