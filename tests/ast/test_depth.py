"""Programs nested too deep are refused with a reason: TVM's passes would end the process, Python's stack end early."""

from __future__ import annotations

import pytest

tvm = pytest.importorskip("tvm")
from tvm import tirx  # noqa: E402

from cdmpp.ast.extract import extract  # noqa: E402
from cdmpp.ast.lowering import MAX_DEPTH  # noqa: E402
from cdmpp.ast.native import summarize  # noqa: E402
from cdmpp.errors import UnsupportedProgramError  # noqa: E402

pytestmark = pytest.mark.tvm
TARGET = tvm.target.Target({"kind": "llvm"})
COPY = """
@T.prim_func
def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for i in range(64):
        B[i] = A[i]
"""


def program(terms: int, in_index: bool = False):
    """One store of a sum of ``terms`` terms, or at an index that is one."""
    function = tvm.script.from_source(COPY)
    loop = function.body
    store = loop.body
    term = tirx.IntImm("int32", 0) if in_index else store.value
    value = loop.loop_var if in_index else store.value
    for _ in range(terms - 1):
        value = tirx.Add(value, term)
    new = tirx.BufferStore(store.buffer, *((store.value, [value]) if in_index else (value, store.indices)))
    return function.with_body(tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, new))


def test_long_sums_up_to_a_depth():
    assert extract(program(MAX_DEPTH - 10), TARGET).n_leaf == 1
    for in_index in (False, True):
        with pytest.raises(UnsupportedProgramError, match=f"stored to B is nested more than {MAX_DEPTH} deep"):
            extract(program(4000, in_index), TARGET)


@pytest.mark.parametrize("branches", [False, True])
def test_loops_and_branches_up_to_a_depth(branches):
    def nested(times):
        function = tvm.script.from_source(COPY)
        body = function.body
        for _ in range(times):
            variable = tirx.Var("n", "int32")
            body = tirx.IfThenElse(variable < 1, body, None) if branches else tirx.For(variable, 0, 1, 0, body)
        return function.with_body(body)

    assert summarize(nested(900), False).n_leaf == 1
    with pytest.raises(UnsupportedProgramError, match="nested too deep to walk"):
        summarize(nested(1100), False)
