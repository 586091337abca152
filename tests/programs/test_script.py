"""TVMScript from elsewhere: restored as written, and refused where it would run something."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from cdmpp.ast.lowering import lower  # noqa: E402
from cdmpp.errors import UnsupportedProgramError  # noqa: E402
from cdmpp.programs.database import read_lines, read_workloads  # noqa: E402
from cdmpp.programs.replay import replay_on  # noqa: E402
from cdmpp.programs.script import parse_text, read_script  # noqa: E402
from tests.ast.programs import matmul_cpu  # noqa: E402

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


def read(tmp_path, text: str, encoding: str = "utf-8"):
    path = tmp_path / "script.py"
    path.write_text(text, encoding=encoding)
    return read_script(path, tvm.target.Target("llvm"))


FREE = TEXT.partition("class Module:\n")[2].replace("\n    ", "\n").removeprefix("    ")


def test_a_file_with_a_byte_order_mark_is_read(tmp_path):
    assert len(read(tmp_path, TEXT, "utf-8-sig")) == 1


def test_constants_of_the_file_stand_for_their_values(tmp_path):
    named = FREE.replace("(8,)", "(N,)").replace("serial(8,", "serial(N,").replace("spatial(8,", "spatial(N,")
    named = named.replace('"float32"', "DTYPE").replace("T.float32(0)", "T.float32(ZERO)")
    head = 'import numpy as np\nfrom tvm.script import tirx as T\nN = 8\nDTYPE: str = "float32"\nZERO = 0.0\n'
    (program,) = read(tmp_path, head + named)
    tvm.ir.assert_structural_equal(program.module, parse_text(FREE, "here"))


def test_a_constant_that_is_computed_is_named_in_the_error(tmp_path):
    with pytest.raises(UnsupportedProgramError, match="line 4: N is not TVMScript.*no parameter, loop or assignment"):
        read(tmp_path, "N = 2 ** 3\n" + FREE.replace("serial(8,", "serial(N,"))


def test_other_names_of_the_script_rooms(tmp_path):
    renamed = FREE.replace("T.", "tx.")
    assert len(read(tmp_path, "from tvm.script import tirx as tx\n" + renamed)) == 1
    assert len(read(tmp_path, FREE.replace("T.", "tir."))) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("T.sblock(", "T.block(", r"it is now T.sblock, in a function that @T.prim_func\(s_tir=True\) declares"),
        ("T.max(", "T.maxx(", r"did you mean T.max\?"),
        ("T.serial(", "T.sreial(", "a loop goes over range, T.grid"),
        ("A: T.Buffer", "A: Buffer", "Buffer is not TVMScript"),
        ("@T.prim_func", "@T.prim_fun", "@T.prim_func is wanted"),
        (
            "i in T.serial(8, annotations={",
            "i in T.serial(8, annotations={'f g': 1, ",
            "no attribute of tensor programs",
        ),
    ],
)
def test_a_refusal_says_what_would_work(tmp_path, old, new, message):
    assert old in FREE
    with pytest.raises(UnsupportedProgramError, match=message):
        read(tmp_path, FREE.replace(old, new, 1))


@pytest.mark.parametrize("terms", [150, 250, 1000, 5000, 100_000])
def test_a_long_sum_is_read_or_said_to_be_too_deep(tmp_path, terms):
    text = FREE.replace("T.max(A[v], T.float32(0))", " + ".join(["A[v]"] * terms))
    if terms <= 150:
        assert read(tmp_path, text)
    else:
        with pytest.raises(UnsupportedProgramError, match="deep"):
            read(tmp_path, text)


def test_scheduled_and_lowered_modules_come_back(native_database):
    """What TVM prints of a program on its way to the device is read as the same program."""
    modules, line = read_workloads(native_database), next(iter(read_lines(native_database)))
    scheduled = replay_on(modules[line.workload], line.schedule).mod
    tvm.ir.assert_structural_equal(parse_text(scheduled.script(), "here"), scheduled)
    lowered = lower(*matmul_cpu())
    tvm.ir.assert_structural_equal(parse_text(lowered.script(), "here")["main"], lowered)


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


def test_the_example_that_readme_shows_is_a_product():
    path = Path(__file__).resolve().parents[2] / "examples" / "matmul.py"
    (program,) = read_script(path, tvm.target.Target("llvm"))
    a, b = np.random.default_rng(0).standard_normal((2, 512, 512), np.float32)
    tensors = [tvm.runtime.tensor(x) for x in (a, b, np.zeros_like(a))]
    tvm.compile(program.module, target=program.target)["main"](*tensors)
    np.testing.assert_allclose(tensors[2].numpy(), np.maximum(a @ b, 0), rtol=1e-3, atol=1e-3)
    assert "cdmpp predict examples/matmul.py" in (path.parents[1] / "README.md").read_text()


def test_a_workload_is_parsed_once_on_a_machine(tmp_path, monkeypatch):
    from cdmpp.data.records import read_tasks
    from cdmpp.programs import replay
    from cdmpp.programs.script import parse_text

    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path))
    tasks = read_tasks(Path(__file__).parents[2] / "datasets" / "h100")
    workload = tasks[min(tasks)].workload
    replay.parse_workload.cache_clear()
    replay.parse_workload(workload)
    assert replay.parsed_path(workload).is_file()
    replay.parse_workload.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(replay, "parse_text", None)  # TVM's parser is not needed again
        kept = replay.parse_workload(workload)
    assert kept.script() == parse_text(workload, "a task").script()
    replay.parse_workload.cache_clear()


def test_what_no_parser_reads_is_not_kept(tmp_path, monkeypatch):
    from cdmpp.errors import DataError
    from cdmpp.programs import replay

    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path))
    with pytest.raises(DataError, match="workload"):
        replay.parse_workload("@T.prim_func\ndef main(): raise SystemExit\n")
    assert not list(tmp_path.rglob("*.json"))
