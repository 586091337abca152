"""The text that Inductor generates: launches, the elements that each fused kernel loads and stores, buffers alive.

Nothing here asks Inductor for its own counts. The index of each ``tl.load`` and ``tl.store`` is evaluated for all
points of its kernel, and the distinct elements are counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

_SOURCE = re.compile(r"^(\w+) = async_compile\.triton\('\w+', '''(.*?)''', device_str", re.M | re.S)
_POINTER = re.compile(r"'(\w+)': '\*(\w+)'")
_SET = re.compile(r"^\s+(\w+)(?:: tl\.constexpr)? = (.+)$", re.M)
_ACCESS = re.compile(r"tl\.(load|store|atomic_\w+)\((\w+) \+ ")
_LAUNCHES = (
    ("fused", re.compile(r"^\s+(\w+)\.run\(", re.M)),
    ("library", re.compile(r"^\s+(?:\w+ = )?(?:extern_kernels\.|torch\.ops\.|aten\.)([\w.]+)\(", re.M)),
)
_ONE = re.compile(r"tl\.full\(\[[\w, ]*\], (\d+), tl\.int32\)(?:\.broadcast_to\([\w, ]*\))?")
_WIDE = re.compile(r"tl\.broadcast_to\((\w+), \[[\w, ]*\]\)")
_BYTES = {"fp64": 8, "i64": 8, "fp32": 4, "i32": 4, "u32": 4, "bf16": 2, "fp16": 2, "i16": 2, "i8": 1, "u8": 1, "i1": 1}
_TORCH = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
_GRAPH = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "bf16": 2, "f16": 2, "i16": 2, "i8": 1, "u8": 1, "b8": 1}
_GIVEN = re.compile(r"^#\s+%(\w+) : Tensor \"(\w+)\[", re.M)
_MADE = re.compile(r"^(\w+) = empty_strided_cuda\(\(([\d, ]*)\), \(([\d, ]*)\), torch\.(\w+)\)")
_SHAPED = re.compile(r"^assert_size_stride\((\w+), \(([\d, ]*)\), \(([\d, ]*)\), '([^']*)'")
_REUSED = re.compile(r"^(\w+) = (?:reinterpret_tensor\()?(\w+).*; del \2\b")
_RESULT = re.compile(r"^(\w+) = (?:torch\.ops|extern_kernels|aten)\.\w.*?\((?:reinterpret_tensor\()?(\w+)")


class Traffic(NamedTuple):
    """Distinct bytes of a kernel; what it reads back after it wrote it is not counted."""

    read: int
    written: int


def launches_in(text: str) -> dict[str, list[str]]:
    """Return the names of fused kernels and of library calls, as ``call`` launches them."""
    body = text[text.index("def call(") :]
    return {kind: pattern.findall(body) for kind, pattern in _LAUNCHES}


def traffic_in(text: str) -> dict[str, Traffic]:
    """Return the traffic of one launch of each fused kernel, by its name."""
    return {name: _Kernel(source).traffic() for name, source in _SOURCE.findall(text)}


class _Kernel:
    def __init__(self, source: str) -> None:
        self.body = source[source.index("\ndef ") :]
        self.sizes = {name: _BYTES[dtype] for name, dtype in _POINTER.findall(source)}
        self.values = dict[str, str]()
        for name, value in _SET.findall(self.body):
            if name not in self.values or name.endswith("numel"):
                self.values[name] = value
        self.loops = {f"{axis}index": int(self.values[f"{axis}numel"]) for axis in ("x", "y", "z", "r0_", "r1_")
                      if self.values.get(f"{axis}numel", "").isdecimal()}  # fmt: skip
        self.axes = {name: place for place, name in enumerate(self.loops)}

    def traffic(self) -> Traffic:
        loaded, stored, own = dict[str, Any](), dict[str, Any](), set[str]()
        for kind, pointer, index in _accesses(self.body):
            if kind == "load" and pointer in own:
                continue
            into = loaded if kind == "load" else stored
            into.setdefault(pointer, []).append(self.elements(index))
            if kind != "load":
                own.add(pointer)
        return Traffic(*(sum(self.sizes[name] * _distinct(all_of) for name, all_of in one.items())
                         for one in (loaded, stored)))  # fmt: skip

    def elements(self, index: str) -> Any:
        """Return the elements that an index names; of one that depends on values as many as there are points."""
        needed = self.needs(index)
        if any(name.startswith("tmp") for name in needed):
            return math.prod(size for name, size in self.loops.items() if name in needed)
        known: dict[str, Any] = {}
        for name, size in self.loops.items():
            shape = [1] * len(self.loops)
            shape[self.axes[name]] = size
            known[name] = np.arange(size, dtype=np.int32).reshape(shape)
        try:
            return np.asarray(self.value(index, known))
        except Exception as error:
            raise ValueError(f"the index {index} is not understood") from error

    def needs(self, index: str) -> set[str]:
        """Return all names that an index depends on."""
        found, waiting = set[str](), re.findall(r"[a-z]\w*", index)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                if name not in self.loops:
                    waiting += re.findall(r"[a-z]\w*", self.values.get(name, ""))
        return found

    def value(self, index: str, known: dict[str, Any]) -> Any:
        for name in re.findall(r"[a-z]\w*", index):
            if name not in known and name in self.values:
                known[name] = self.value(self.values[name], known)
        helpers = {"tl": _Integers, "triton_helpers": _Integers, "libdevice": _Integers, "load_seed_offset": 0}
        return eval(index, {"__builtins__": {}}, {**helpers, **known})  # noqa: S307  # text that Inductor wrote


class _Integers:
    """Functions in indices."""

    int32 = int64 = np.int64
    where = staticmethod(np.where)
    minimum = staticmethod(np.minimum)
    maximum = staticmethod(np.maximum)
    div_floor_integer = staticmethod(lambda a, b: a // b)
    remainder_integer = staticmethod(lambda a, b: a % b)


def _accesses(body: str) -> Iterator[tuple[str, str, str]]:
    """Yield what is done, to which pointer, at which index, in the order of the text."""
    for found in _ACCESS.finditer(body):
        begin = end = found.end()
        depth = 0
        while body[end] not in ",)" or depth:
            depth += {"(": 1, ")": -1}.get(body[end], 0)
            end += 1
        yield found[1], found[2], _WIDE.sub(r"\1", _ONE.sub(r"\1", body[begin:end]))


def _distinct(all_of: list[Any]) -> int:
    """Elements of one pointer: those that are known by number, each once, or as many points if those are more."""
    known = [one.ravel() for one in all_of if not isinstance(one, int)]
    is_touched = np.zeros(1 + max((int(one.max()) for one in known), default=-1), bool)
    for one in known:
        is_touched[one[one >= 0]] = True  # below zero: masked off, such as what a padding reads
    counted = int(is_touched.sum())
    return max([counted, *(one for one in all_of if isinstance(one, int))])


def peak_in(text: str, kept: Mapping[str, int]) -> int:
    """Return the most bytes alive while ``call`` runs: what it makes, and what it is given of ``kept``.

    Args:
        text: of one graph. It frees a buffer at ``del``, and writes one over another at ``# reuse``.
        kept: name of an input that the forward pass saved -> bytes.
    """
    return _Buffers(text, kept).peak


def saved_in(forward: str, backward: str) -> dict[str, int]:
    """Return each buffer that a backward graph is given of its forward graph -> bytes, once; its other names have 0.

    The last results of the forward graph are the first inputs of the backward graph, in the same order.
    """
    head = backward[backward.index("def call(") :].splitlines()[1]
    names = [one for one in re.findall(r"\w+", head.split(" = ")[0]) if not one.startswith("tangents_")]
    results = results_in(forward)[-len(names) :]
    found, seen, alive = dict[str, int](), set[str](), _Buffers(forward, {}).alive
    for name, result in zip(names, results, strict=True):
        found[name] = 0 if result in seen else alive.get(result, 0)
        seen.add(result)
    return found


def results_in(text: str) -> list[str]:
    """Return the names of the buffers that ``call`` returns, in order."""
    line = re.findall(r"^\s+return \((.*)\)$", text[text.index("def call(") :], re.M)[0]
    return re.findall(r"(?:^|, )(?:reinterpret_tensor\()?((?:buf|primals_|[a-z])\w*)(?=[,)])", f"{line},")


class _Buffers:
    """What is alive at the end of ``call``, and the most that was."""

    def __init__(self, text: str, given: Mapping[str, int]) -> None:
        self.alive, self.itemsize = dict(given), dict[str, int]()
        self.itemsize |= {name: _GRAPH.get(dtype, 4) for name, dtype in _GIVEN.findall(text)}
        self.total = self.peak = sum(given.values())
        lines = [line.strip() for line in text[text.index("def call(") :].splitlines()]
        self.parts = dict[str, list[str]]()
        """Result of a library -> names of the tensors in its tuple, which are there as soon as it is."""
        for line in lines:
            if found := re.match(r"^(\w+) = (\w+)\[\d+\]$", line):
                self.parts.setdefault(found[2], []).append(found[1])
        self.shapes = {found[1]: found for line in lines if (found := _SHAPED.match(line)) and found[4] != "input"}
        for line in lines:
            self._line(line)
            self.peak = max(self.peak, self.total)

    def _line(self, line: str) -> None:
        if found := _MADE.match(line):
            self._put(found[1], found[2], found[3], _TORCH[found[4]])
        elif found := _REUSED.match(line):
            self.alive[found[1]], self.itemsize[found[1]] = self.alive.pop(found[2], 0), self.itemsize.get(found[2], 4)
        elif found := _RESULT.match(line):
            for name in self.parts.get(found[1], [found[1]]):
                if shape := self.shapes.get(name):
                    self._put(name, shape[2], shape[3], self.itemsize.get(found[2], 4))
        elif found := re.match(r"^del (\w+)$", line):
            self.total -= self.alive.pop(found[1], 0)

    def _put(self, name: str, shape: str, strides: str, itemsize: int) -> None:
        sizes, steps = ([int(one) for one in text.split(",") if one.strip()] for text in (shape, strides))
        last = sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
        self.itemsize[name], self.alive[name] = itemsize, 0 if 0 in sizes else itemsize * (1 + last)
        self.total += self.alive[name]
