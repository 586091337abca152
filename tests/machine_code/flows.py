"""How functions run whose text a test gives."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

from cdmpp.machine_code.cpu.native import native_code

NOTHING = "define i32 @main_compute_() {\nentry:\n  ret i32 0\n}\n"
_BYTES = 1 << 22


@dataclass
class FunctionFlow:
    """How one function runs, each time that it is called."""

    times: float
    """Calls in one run of the program."""
    unknown: float
    """Branches that data decide, where they decide about more than a hundredth of the instructions that run."""
    runs: dict[str, float] = field(default_factory=dict)
    """Block -> runs."""
    lines: dict[str, list[str]] = field(default_factory=dict)
    """Block -> its instructions."""
    entries: dict[str, float] = field(default_factory=dict)
    """Header of a loop -> times that it is entered."""
    bodies: dict[str, frozenset[str]] = field(default_factory=dict)
    """Header of a loop -> its blocks."""

    def trips(self, header: str) -> float:
        """Iterations of a loop each time that it is entered; 1 where it never is."""
        entries = self.entries[header]
        return max(1.0, self.runs[header] / entries) if entries > 0 else 1.0


def flows(llvm_ir: str, assembly: str = "") -> tuple[dict[str, FunctionFlow], dict[str, FunctionFlow]]:
    """The functions of a program by name: of its IR, and of its assembly where that is given."""
    out = ctypes.create_string_buffer(_BYTES)
    texts = llvm_ir.encode(), len(llvm_ir), assembly.encode(), len(assembly)
    size = native_code().code_flows(*texts, out, _BYTES)
    assert 0 <= size <= _BYTES
    found: dict[str, dict[str, FunctionFlow]] = {"I": {}, "M": {}}
    for line in out.raw[:size].decode().splitlines():
        kind, name, number, *rest = line.split("\t")
        if kind in found:
            flow = found[kind][name] = FunctionFlow(float(number), float(rest[0]))
        elif kind == "B":
            flow.runs[name], flow.lines[name] = float(number), rest
        else:
            flow.entries[name], flow.bodies[name] = float(number), frozenset(rest)
    return found["I"], found["M"]


def ir_flow(text: str) -> FunctionFlow:
    """The flow of the only function of an LLVM module that computes."""
    (flow,) = flows(text)[0].values()
    return flow


def machine_flow(assembly: str, name: str = "main_compute_", llvm_ir: str = "") -> FunctionFlow:
    """The flow of a function of machine code; its IR says nothing if none is given."""
    return flows(llvm_ir or NOTHING.replace("main_compute_", name), assembly)[1][name]
