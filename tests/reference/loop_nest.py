"""What the walk finds: loops, stores with their place, allocations; and how a buffer or an extent is read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from cdmpp.errors import UnsupportedProgramError
from tests.reference.expression import kind_of


class Kind(IntEnum):
    """Of a loop, by TVM's numbers."""

    SERIAL, PARALLEL, VECTORIZED, UNROLLED, THREAD = range(5)


class Tag(IntEnum):
    """What a loop of threads runs over."""

    NONE, BLOCK, THREAD, VTHREAD = range(4)


class Scope(IntEnum):
    """Memory that a buffer lies in."""

    GLOBAL, SHARED, LOCAL = range(3)


@dataclass
class Loop:
    """One loop, or one axis of threads."""

    handle: int
    """Of its variable."""
    start: int
    extent: int
    kind: int
    tag: Tag = Tag.NONE
    axis: int = 0
    branches: bool = False
    """The body holds several statements, so values kept in registers or shared memory may change between trips."""
    unrolled: bool = False
    stages: int = 1
    """Software pipeline depth: copies of each buffer filled inside."""
    written: set[int] = field(default_factory=set)
    """Buffers stored to inside."""
    started: set[int] = field(default_factory=set)
    """Buffers that get a constant inside: accumulators that start afresh in every trip."""


@dataclass(frozen=True)
class Leaf:
    """One store and its place in the tree."""

    store: Any
    loops: list[Loop]
    guards: list[tuple[Any, bool]]
    """Conditions around it, and whether they must hold or fail."""
    position: int
    serial_position: int
    kernel: int
    unroll_limit: int
    explicit_unroll: bool
    lanes: int
    """Of an already vectorised (Ramp) store."""


class Allocation(NamedTuple):
    """A buffer of a kernel; per thread where its scope is local."""

    scope: Scope
    elements: int
    bytes: int


@dataclass
class Kernel:
    """One launch or top-level loop nest."""

    allocations: list[Allocation] = field(default_factory=list)
    code_steps: int = 0
    cross_thread_reductions: float = 0.0
    unroll_limit: int = 0
    stages: int = 1


@dataclass(frozen=True)
class Tree:
    """All that the walk finds."""

    leaves: list[Leaf]
    kernels: list[Kernel]
    function_allocations: list[Allocation]


def integer(value: Any, what: str) -> int:
    """A constant of TVM; ``UnsupportedProgramError`` where it is none."""
    if isinstance(value, int):
        return value
    if kind_of(value) == "IntImm":
        return int(value.value)
    raise UnsupportedProgramError(f"{what} is symbolic ({value}); bind every shape to a number before predicting")


def scope_of(buffer: Any) -> Scope:
    """Memory that a buffer lies in."""
    scope = str(buffer.scope())
    if scope.startswith("shared"):
        return Scope.SHARED
    return Scope.GLOBAL if scope in ("", "global") else Scope.LOCAL


def element_bytes(buffer: Any) -> float:
    """At least 1."""
    return max(1.0, buffer.dtype.bits / 8)


def elements(buffer: Any) -> int:
    """Of the whole buffer."""
    return math.prod(max(1, integer(extent, f"a dimension of buffer {buffer.name}")) for extent in buffer.shape)


def thread_tag(tag: str) -> tuple[Tag, int]:
    """``threadIdx.y`` -> (Tag.THREAD, 1)."""
    axis = {"x": 0, "y": 1, "z": 2}.get(tag.rsplit(".", 1)[-1], 0)
    return {"blockIdx": Tag.BLOCK, "threadIdx": Tag.THREAD}.get(tag.split(".")[0], Tag.VTHREAD), axis
