"""Flows of functions whose text a test gives."""

from __future__ import annotations

from cdmpp.machine_code.cpu.flow import FunctionFlow
from cdmpp.machine_code.cpu.native import native_flows

NOTHING = "define i32 @main_compute_() {\nentry:\n  ret i32 0\n}\n"


def ir_flow(text: str) -> FunctionFlow:
    """The flow of the only function of an LLVM module that computes."""
    found = native_flows(text)
    assert found is not None
    (flow,) = found[0].values()
    return flow


def machine_flow(assembly: str, name: str = "main_compute_") -> FunctionFlow:
    """The flow of a function of x86-64 code, whose IR says nothing."""
    found = native_flows(NOTHING.replace("main_compute_", name), assembly)
    assert found is not None
    return found[1][name]
