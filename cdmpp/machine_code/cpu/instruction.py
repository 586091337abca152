"""One LLVM instruction -> what it costs an execution core: classes of work and how much of each."""

from __future__ import annotations

import math
import re
from functools import lru_cache

from cdmpp.machine_code.cpu.code_features import WIDTHS

_VECTOR = re.compile(r"<(\d+) x (\w+)>")
_MASK = re.compile(r"<\d+ x i1> <([^>]*)>")
_SHUFFLE_INDICES = re.compile(r"<(\d+) x i32> (?:<([^>]*)>|\w+)$")
_COPIED = re.compile(r"i64 (\d+), i1")
_ONE_STEP = re.compile(r"maxnum|minnum|maximum|minimum|fabs|llvm\.[su]m(?:ax|in)|llvm\.(?:floor|ceil|rint|round|trunc)")
_FREE_CALL = re.compile(r"llvm\.(?:dbg|lifetime|assume|experimental)")
_FREE = frozenset(
    ("phi", "switch", "ret", "unreachable", "bitcast", "freeze", "fence", "poison", "addrspacecast", "extractvalue")
)
_BY_REGISTER = {
    **dict.fromkeys(("fmul", "fadd", "fsub", "fneg"), "float"),
    **dict.fromkeys(("fcmp", "select"), "select"),
    **dict.fromkeys(("sitofp", "uitofp", "fptosi", "fptoui", "fpext", "fptrunc"), "convert"),
    "fdiv": "divide",
}
_BY_LANE = {**dict.fromkeys(("sdiv", "srem", "udiv", "urem"), "int_divide"), "frem": "call"}
_SCALAR = {**dict.fromkeys(("sext", "zext", "trunc"), "extend"), "getelementptr": "address"}
_SCALAR_BYTES = {"float": 4, "double": 8, "half": 2, "bfloat": 2, "ptr": 8}
_VECTOR_BYTES = 64
"""Of one register: wider vectors are counted as several."""


@lru_cache(maxsize=65536)
def classify(line: str) -> tuple[tuple[str, float], ...]:
    """(class, amount) of one instruction; empty where it costs nothing."""
    classes = _classify(line)
    vector = _VECTOR.search(line)
    # Vectors of, say, 49 lanes are cut and put together again, many of them lane by lane.
    odd = not line.split(" = ", 1)[-1].startswith(("shufflevector", "insertelement", "extractelement"))
    if odd and classes and vector and "llvm.masked." not in line and (lanes := int(vector[1])) & (lanes - 1):
        classes.append(("odd_vector", float(registers(line))))
        if lanes > WIDTHS[-1] and classes[0][0].startswith("float"):
            classes.append(("odd_wide_lanes", float(lanes)))
    return tuple(classes)


def _classify(line: str) -> list[tuple[str, float]]:
    text = line.split(" = ", 1)[1] if line.startswith("%") and " = " in line else line
    operation = text.split(" ", 1)[0]
    if operation in ("tail", "musttail", "notail"):
        text = text.split(" ", 1)[1]
        operation = "call"
    vector = _VECTOR.search(text)
    lanes = int(vector[1]) if vector else 1
    pieces = float(registers(line)) if vector else 1.0
    width = next((w for w in WIDTHS if lanes <= w), WIDTHS[-1])
    if operation == "call":
        return _call(text, lanes, pieces, width)
    if operation in ("load", "store"):
        return _memory(operation, text, lanes, pieces, width)
    if operation in _FREE:
        return []
    if operation == "shufflevector":
        return _shuffle(text, pieces)
    if operation in _BY_REGISTER:
        return [(f"{_BY_REGISTER[operation]}_{width}", pieces)]
    if operation in _BY_LANE:
        return [(_BY_LANE[operation], float(lanes))]
    if operation in ("insertelement", "extractelement", "br"):
        return [("branch" if operation == "br" else "insert", 1.0)]
    if lanes > 1:
        return [("vector_int", pieces)]
    return [(_SCALAR.get(operation, "scalar_int"), 1.0)]


def registers(line: str) -> int:
    """Vector registers that the first vector of ``line`` fills; 1 where there is none."""
    vector = _VECTOR.search(line)
    return max(1, -(-int(vector[1]) * _element_bytes(vector[2]) // _VECTOR_BYTES)) if vector else 1


def _call(text: str, lanes: int, pieces: float, width: int) -> list[tuple[str, float]]:
    if "llvm.fma" in text or "llvm.fmuladd" in text:
        return [(f"float_{width}", pieces), ("fused_lanes", float(lanes))]
    if operation := next((o for o in ("gather", "scatter", "load", "store") if f"llvm.masked.{o}" in text), ""):
        if operation in ("gather", "scatter"):
            return [(operation, float(lanes))]
        element = _element_bytes(_VECTOR.search(text)[2])  # type: ignore[index]  # it has lanes
        if mask := _MASK.search(text):  # of a long vector only the registers with a lane in use are moved
            used = [i * element // _VECTOR_BYTES for i, bit in enumerate(mask[1].split(",")) if bit.endswith("true")]
            lanes, pieces = len(used), float(len(set(used)))
        moved = float(lanes * element)
        return [(f"{operation}_{width}", pieces), ("masked", pieces), (f"{operation}_bytes", moved)]
    if "llvm.memset" in text or "llvm.memcpy" in text:
        size = _COPIED.search(text)
        copied = float(size[1]) if size else float(_VECTOR_BYTES)
        return [("store_16", max(1.0, copied / _VECTOR_BYTES)), ("store_bytes", copied)]
    if "llvm.sqrt" in text:
        return [(f"divide_{width}", pieces)]
    if _ONE_STEP.search(text):
        return [(f"float_{width}", pieces)]
    if "vector.reduce" in text:
        return [("shuffle", math.log2(max(2, lanes)))]
    return [] if _FREE_CALL.search(text) else [("call", 1.0)]


def _shuffle(text: str, pieces: float) -> list[tuple[str, float]]:
    """By the registers of the result that receive anything."""
    indices = _SHUFFLE_INDICES.search(text)
    if indices is None:
        return [("shuffle", pieces)]
    if indices[2] is None:
        return [("broadcast", float(max(1, -(-int(indices[1]) * 4 // _VECTOR_BYTES))))]
    filled = [i * 4 // _VECTOR_BYTES for i, word in enumerate(indices[2].split(",")) if not word.endswith("poison")]
    return [("shuffle", float(max(1, len(set(filled)))))]


def _memory(operation: str, text: str, lanes: int, pieces: float, width: int) -> list[tuple[str, float]]:
    words = text.split(" ", 3)
    kind = words[2] if words[1] == "volatile" else words[1]
    element = _VECTOR.search(text)[2] if lanes > 1 else kind.rstrip(",")  # type: ignore[index]
    moved = (f"{operation}_bytes", float(lanes * _element_bytes(element)))
    if lanes == 1 and element not in ("float", "double", "half", "bfloat"):
        return [(f"{operation}_int", 1.0), moved]
    return [(f"{operation}_{width}", pieces), moved]


def _element_bytes(kind: str) -> int:
    if kind in _SCALAR_BYTES:
        return _SCALAR_BYTES[kind]
    return max(1, int(kind[1:]) // 8) if re.fullmatch(r"i\d+", kind) else 4
