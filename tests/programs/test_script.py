"""TVMScript from elsewhere: restored as written, and refused where it would run something."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

tvm = pytest.importorskip("tvm")

from cdmpp.errors import UnsupportedProgramError  # noqa: E402
from cdmpp.programs.script import parse_text  # noqa: E402

pytestmark = pytest.mark.tvm

TEXT = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in T.serial(8, annotations={"pragma_auto_unroll_max_step": 16}):
            with T.sblock("B"):
                v = T.axis.spatial(8, i)
                B[v] = T.max(A[v], T.float32(0))
"""


def test_text_comes_back_as_written():
    module = parse_text(TEXT, "here")
    tvm.ir.assert_structural_equal(module, tvm.script.from_source(TEXT))
    tvm.ir.assert_structural_equal(module, parse_text(module.script(), "here"))


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').mkdir('ran')",
        "T.float32(0).__class__",
        "getattr(T, 'float32')(0)",
        "(lambda: exec('x'))()",
        "[open('ran', 'w') for _ in range(1)][0]",
    ],
)
def test_text_that_would_run_something_is_refused(tmp_path, monkeypatch, expression):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsupportedProgramError, match=r"here, line 9: .* is not TVMScript"):
        parse_text(TEXT.replace("T.float32(0)", expression), "here")
    assert not list(tmp_path.iterdir())


def test_import_is_refused():
    with pytest.raises(UnsupportedProgramError, match="`import`"):
        parse_text(TEXT.replace("        for i in", "        import os\n        for i in"), "here")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def (", "not Python text"),
        (TEXT.replace("A[v]", "Z[v]"), "Z"),
        (TEXT.replace("(s_tir=True)", ""), r"declared by @T.prim_func\(s_tir=True\)"),
    ],
)
def test_text_that_does_not_parse_says_why(text, message):
    with pytest.raises(UnsupportedProgramError, match=message):
        parse_text(text, "here")


def test_real_workloads_are_let_through():
    """Where the A100 records are at hand, every eighth workload of theirs."""
    found = [
        path
        for folder in os.environ.get("CDMPP_DATA", "").split(os.pathsep)
        if folder
        for path in Path(folder).rglob("workload_tvmscript.json.gz")
    ]
    if not found:
        pytest.skip("no workloads in $CDMPP_DATA")
    for path in found:
        for row in json.loads(gzip.decompress(path.read_bytes()))[::8]:
            parse_text(row["tvmscript"], str(path))
