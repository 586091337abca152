"""Tables of C++: what the readable modules and their C++ twin share, as the text of a header."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cdmpp.features import names
from cdmpp.machine_code.cpu import (
    addresses,
    instruction,
    machine,
    pipeline,
    throughput,
    x86,
)
from cdmpp.machine_code.cpu.code_features import CLASSES, CODE_NAMES, EXTRA, RESOURCES, WIDTHS
from cdmpp.machine_code.cpu.operation import OPERATIONS

TOTALS = (*CODE_NAMES, "hottest_total", "hottest_machine_total")
"""What C++ adds up, in its order; the last two tell the shares of the hottest code."""
_SHARED = {
    addresses: "MOST_TERMS",
    instruction: "_FREE _SCALAR_BYTES _VECTOR_BYTES",
    pipeline: "LINE_BYTES _WIDE _ALIAS_BYTES _REPEATED _LONGEST",
    throughput: "_FLOAT_LATENCY _VECTOR_REGISTERS _ODD_LANE_CYCLES _CALL_CYCLES _SPILL_CYCLES",
    x86: "_ONLY_READS _KEEPS_TARGET _OVERWRITES _STORES _READS_FLAGS _ONE_OPERAND _NAMED",
}
_OPERATION_SETS = {machine: "_FLOATS _SHUFFLES _INTEGERS"}


def header() -> str:
    """C++ text, the same in every process."""
    lines = ["#pragma once", '#include "text.h"', "namespace cdmpp {", "struct Entry { Text name; int value; };"]
    lines.append(_enum("feature", [*TOTALS, "N"]))
    lines.append(_enum("op", [f"op_{name}" for name in OPERATIONS]))
    for module, constants_of in _SHARED.items():
        lines += [_constant(name, getattr(module, name)) for name in constants_of.split()]
    for module, sets in _OPERATION_SETS.items():
        lines += [_array("int", name, (f"op::op_{one}" for one in getattr(module, name))) for name in sets.split()]
    lines.append(_array("Text", "SETS_FLAGS", map(_quoted, x86._SETS_FLAGS + x86._FLAGS_TOO)))
    lines.append(_entries("PARTS", ((e, size) for endings, size in x86._PARTS for e in endings)))
    lines.append(_entries("RULES", ((b, f"op::op_{name}") for beginnings, name in x86._RULES for b in beginnings)))
    lines.append(_entries("BY_REGISTER", ((k, f"feature::n_{v}_1") for k, v in instruction._BY_REGISTER.items())))
    lines.append(_entries("BY_LANE", ((k, f"feature::n_{v}") for k, v in instruction._BY_LANE.items())))
    lines.append(_entries("SCALAR", ((k, f"feature::n_{v}") for k, v in instruction._SCALAR.items())))
    lines.append(_array("int", "KIND_OF", (f"feature::machine_is_{kind}" for kind in OPERATIONS.values())))
    lines.append(_array("int64_t", "WIDTHS", map(str, WIDTHS)))
    lines.append(_array("double", "DIVIDE_CYCLES", (repr(throughput._DIVIDE_CYCLES[width]) for width in WIDTHS)))
    for name, features in {"CLASSES": CLASSES, "RESOURCES": RESOURCES, "EXTRA": EXTRA}.items():
        lines.append(_constant(f"N_{name}", len(names(features))))
    return "\n".join([*lines, "}  // namespace cdmpp", ""])


def _constant(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return _entries(name, value.items())
    if isinstance(value, tuple | frozenset):
        return _array("Text", name, map(_quoted, sorted(value)))
    kind, text = ("Text", _quoted(value)) if isinstance(value, str) else (type(value).__name__, repr(value))
    return f"constexpr {'int64_t' if kind == 'int' else kind.replace('float', 'double')} {name.lstrip('_')} = {text};"


def _array(kind: str, name: str, values: Iterable[str]) -> str:
    return f"constexpr {kind} {name.lstrip('_')}[] = {{{', '.join(values)}}};"


def _entries(name: str, pairs: Iterable[tuple[str, Any]]) -> str:
    return _array("Entry", name, (f"{{{_quoted(key)}, {value}}}" for key, value in pairs))


def _enum(name: str, values: Iterable[str]) -> str:
    return f"namespace {name} {{ enum : int {{ {', '.join(values)} }}; }}"


def _quoted(text: str) -> str:
    return f'"{text}"'
