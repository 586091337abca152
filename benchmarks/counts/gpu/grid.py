"""All warps of a small grid at once: registers and predicates of every lane, and how operands are read and written."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.machine_code.gpu.launch import LANES, Launch, abi_of

GENERAL, UNIFORM, PREDICATES = 256, 64, 8
_DESCRIPTORS = {80: (0x118, 0x11C), 90: (0x208, 0x20C)}
"""Where the launch leaves how global memory is reached: nothing of it shows in an address."""
_REGISTER = re.compile(r"^([-~]?)(\|?)(U?)R(\d+|Z)((?:\.\w+)*)\|?$")
_PREDICATE = re.compile(r"^(!?)(U?)P(\d|T)$")
_CONSTANT = re.compile(r"^([-~]?)(\|?)cx?\[(0x[0-9a-f]+)\]\[(0x[0-9a-f]+)\]\|?$")
_NUMBERS = {"+INF": math.inf, "-INF": -math.inf, "+QNAN": math.nan, "-QNAN": -math.nan, "INF": math.inf}


class NotKnownError(Exception):
    """The interpreter does not know what this instruction does with such operands."""


@dataclass
class Grid:
    """Every lane of every warp, in the order of blocks and, in a block, of warps."""

    arch: int
    launch: Launch
    stack_bytes: int
    arguments: tuple[int, ...]
    """Addresses that the kernel is given, in order."""
    literals: bytes = b""
    """Constant bank 2."""

    def __post_init__(self) -> None:
        launch = self.launch
        self.warps = launch.blocks * launch.warps
        self.block = np.arange(self.warps) // launch.warps
        thread = (np.arange(self.warps) % launch.warps * LANES)[:, None] + np.arange(LANES)
        self.exists = thread < launch.threads
        self.registers = np.zeros((GENERAL, self.warps, LANES), np.uint32)
        self.uniforms = np.zeros((UNIFORM, self.warps, 1), np.uint32)
        self.predicates = np.zeros((PREDICATES, self.warps, LANES), bool)
        self.uniform_predicates = np.zeros((PREDICATES, self.warps, 1), bool)
        self.predicates[-1] = self.uniform_predicates[-1] = True
        block = self.block[:, None] + np.zeros((1, LANES), np.int64)
        self.special = {
            **_axes("SR_TID", thread, launch.block),
            **_axes("SR_CTAID", block, launch.grid),
            "SR_LANEID": np.arange(LANES, dtype=np.uint32) + np.zeros((self.warps, 1), np.uint32),
            **dict.fromkeys(("SRZ", "SR_CgaCtaId", "SR_SWINHI"), np.zeros((self.warps, LANES), np.uint32)),
        }

    def constant(self, bank: int, offset: int) -> int:
        """One word of a constant bank. ``NotKnownError``: nobody says what stands there."""
        if bank == 2 and offset + 4 <= len(self.literals):
            return int.from_bytes(self.literals[offset : offset + 4], "little")
        arguments_at, stack_at = abi_of(self.arch)
        number, high = divmod(offset - arguments_at, 8)
        if bank == 0 and 0 <= number < len(self.arguments) and high in (0, 4):
            return self.arguments[number] >> 8 * high & 0xFFFFFFFF
        known = dict(zip(range(0, 24, 4), (*self.launch.block, *self.launch.grid), strict=True))
        known |= {stack_at: self.stack_bytes, **dict.fromkeys(_DESCRIPTORS.get(self.arch, ()), 0)}
        if bank or offset not in known:
            raise NotKnownError(f"c[{bank:#x}][{offset:#x}]")
        return known[offset]


def _axes(name: str, number: np.ndarray, extents: tuple[int, int, int]) -> dict[str, np.ndarray]:
    x, y, _ = extents
    parts = number % x, number // x % y, number // (x * y)
    return {f"{name}.{axis}": part.astype(np.uint32) for axis, part in zip("XYZ", parts, strict=True)}


Read = Callable[[Grid, Any], np.ndarray]
"""(lanes of some warps) of an operand: (warps, 32), or (warps, 1) or (1, 1) where all are the same."""
Write = Callable[[Grid, Any, np.ndarray, Any], None]
"""Writes values to the lanes of some warps that a mask (warps, 32) names."""


def truth(text: str) -> Read:
    """A predicate."""
    found = _PREDICATE.match(text)
    if found is None:
        raise NotKnownError(f"{text} is no predicate")
    place, turned = -1 if found[3] == "T" else int(found[3]), bool(found[1])
    if found[2]:
        return lambda grid, warps: grid.uniform_predicates[place, warps] ^ turned
    return lambda grid, warps: grid.predicates[place, warps] ^ turned


def is_truth(text: str) -> bool:
    """True for the text of a predicate."""
    return _PREDICATE.match(text) is not None


def is_register(text: str) -> bool:
    """True for the text of a register, a uniform one included."""
    return _REGISTER.match(text) is not None


def register_at(text: str) -> tuple[bool, int]:
    """Whether a register is uniform, and its number; -1 for the one that is zero."""
    found = _REGISTER.match(text)
    if found is None:
        raise NotKnownError(f"{text} is no register")
    return bool(found[3]), -1 if found[4] == "Z" else int(found[4])


def word(text: str, further: int = 0, signs: bool = True) -> Read:
    """The 32 bits of an operand as they are; ``further``: those of the register or constant so many behind it."""
    if found := _REGISTER.match(text):
        if set(found[5].split(".")[1:]) - {"64", "U32"}:
            raise NotKnownError(text)
        sign, size, (uniform, place) = found[1], found[2], register_at(text)
        read: Read
        if place < 0:
            read = _always(0)
        elif uniform:
            read = lambda grid, warps: grid.uniforms[place + further, warps]  # noqa: E731
        else:
            read = lambda grid, warps: grid.registers[place + further, warps]  # noqa: E731
    elif found := _CONSTANT.match(text):
        sign, size, bank, offset = found[1], found[2], int(found[3], 16), int(found[4], 16) + 4 * further
        read = lambda grid, warps: np.full((1, 1), grid.constant(bank, offset), np.uint32)  # noqa: E731
    else:
        return _always(0 if further else _bits_of(text))
    if not signs or not (sign or size):
        return read
    if size:
        raise NotKnownError(text)
    return (lambda grid, warps: -read(grid, warps)) if sign == "-" else (lambda grid, warps: ~read(grid, warps))


def _always(bits: int) -> Read:
    value = np.full((1, 1), bits, np.uint32)
    return lambda grid, warps: value


def _bits_of(text: str) -> int:
    sign = -1 if text.startswith("-") and "0x" in text else 1
    if "0x" in text:
        bits = int(text.lstrip("-~"), 16)
        return (~bits if text.startswith("~") else sign * bits) & 0xFFFFFFFF
    try:
        number = _NUMBERS[text] if text in _NUMBERS else float(text)
    except ValueError as error:
        raise NotKnownError(text) from error
    return int(np.float32(number).view(np.uint32))


def wide(text: str) -> Read:
    """The 64 bits of a pair of registers or of two words of a constant bank; of an immediate its sign goes on."""
    if not _REGISTER.match(text) and not _CONSTANT.match(text):
        value = np.array([[_bits_of(text)]], np.uint32).view(np.int32).astype(np.int64).view(np.uint64)
        return lambda grid, warps: value
    low, high = word(text, signs=False), word(text, 1, signs=False)
    negative = text.startswith("-")

    def read(grid: Grid, warps: Any) -> np.ndarray:
        bits = high(grid, warps).astype(np.uint64) << np.uint64(32) | low(grid, warps)
        return (-bits if negative else bits).astype(np.uint64)

    return read


def real(text: str) -> Read:
    """A float of 32 bits, with its sign and magnitude as the operand asks for them."""
    negative, magnitude = text.startswith("-"), "|" in text
    if not _REGISTER.match(text) and not _CONSTANT.match(text):
        negative = magnitude = False
    read = word(text.lstrip("-").strip("|") if negative or magnitude else text)

    def value(grid: Grid, warps: Any) -> np.ndarray:
        bits = np.ascontiguousarray(read(grid, warps)).view(np.float32)
        bits = np.abs(bits) if magnitude else bits
        return -bits if negative else bits

    return value


def put(text: str, further: int = 0) -> Write:
    """Where a result of 32 bits goes."""
    uniform, place = register_at(text)

    def general(grid: Grid, warps: Any, mask: np.ndarray, value: Any) -> None:
        there = grid.registers[place + further]
        there[warps] = np.where(mask, value, there[warps])

    def of_warp(grid: Grid, warps: Any, mask: np.ndarray, value: Any) -> None:
        there, chosen = grid.uniforms[place + further], mask.any(1, keepdims=True)
        first = mask.argmax(1)[:, None]
        values = np.take_along_axis(np.broadcast_to(value, mask.shape), first, 1)
        there[warps] = np.where(chosen, values, there[warps])

    if place < 0:
        return lambda grid, warps, mask, value: None
    return of_warp if uniform else general


def put_wide(text: str) -> Write:
    """Where a result of 64 bits goes."""
    low, high = put(text), put(text, 1)

    def write(grid: Grid, warps: Any, mask: np.ndarray, value: Any) -> None:
        low(grid, warps, mask, (value & np.uint64(0xFFFFFFFF)).astype(np.uint32))
        high(grid, warps, mask, (value >> np.uint64(32)).astype(np.uint32))

    return write


def put_truth(text: str) -> Write:
    """Where a predicate goes."""
    found = _PREDICATE.match(text)
    if found is None or found[1]:
        raise NotKnownError(f"{text} is no predicate")
    if found[3] == "T":
        return lambda grid, warps, mask, value: None
    place, uniform = int(found[3]), bool(found[2])

    def write(grid: Grid, warps: Any, mask: np.ndarray, value: Any) -> None:
        if uniform:
            there = grid.uniform_predicates[place]
            values = np.take_along_axis(np.broadcast_to(value, mask.shape), mask.argmax(1)[:, None], 1)
            there[warps] = np.where(mask.any(1, keepdims=True), values, there[warps])
        else:
            there = grid.predicates[place]
            there[warps] = np.where(mask, value, there[warps])

    return write
