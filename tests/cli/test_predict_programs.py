"""`cdmpp predict` of scripts and databases: read, never executed; TVM only where it is needed."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import cdmpp
from cdmpp import cli, devices
from cdmpp.ast.table import write_asts

SCRIPT = '''
"""Two programs, and a line that must never run."""
import os
from tvm.script import ir as I
from tvm.script import tirx as T

os.system("touch {flag}")


@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64, 64), "float32"), C: T.Buffer((64, 64), "float32")):
        for i, j, k in T.grid(64, 64, 64):
            with T.sblock("C"):
                v_i, v_j, v_k = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[v_i, v_j] = T.float32(0.0)
                C[v_i, v_j] = C[v_i, v_j] + A[v_i, v_k] * B[v_k, v_j]


@T.prim_func(s_tir=True)
def scale(A: T.Buffer((64,), "float32"), filter: T.Buffer((64,), "float32")):
    for i in range(64):
        with T.sblock("B"):
            v = T.axis.spatial(64, i)
            filter[v] = A[v] * T.float32(2)
'''


def test_stored_asts_are_predicted_and_scripts_refused_without_tvm(workplace, asts, model):
    write_asts(workplace / "asts.parquet", [str(i) for i in range(30)], asts)
    (workplace / "two.py").write_text(SCRIPT.format(flag="ran"))
    code = "import sys; sys.modules['tvm'] = None; from cdmpp.cli.command import main; sys.exit(main(sys.argv[1:]))"

    def run(programs: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, "predict", programs, "--device", "xeon-icelake", "--model", str(model)]
        return subprocess.run([*command, "--json"], capture_output=True, text=True)

    done = run("asts.parquet")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["programs"]) == 30
    done = run("two.py")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "needs TVM" in done.stderr


@pytest.mark.tvm
def test_predict_reads_a_script_without_running_it(workplace, model, capsys):
    pytest.importorskip("tvm")
    from tvm.target import Target

    from cdmpp.programs.script import read_script

    path = workplace / "two.py"
    path.write_text(SCRIPT.format(flag=workplace / "ran"))
    assert cli.main(["predict", str(path), "--device", "xeon-icelake", "--model", str(model), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    programs = read_script(path, Target(devices.get("xeon-icelake").target))
    expected = cdmpp.load_model(model).predict(programs).latency_s
    assert [row["program"] for row in answer["programs"]] == ["main", "scale"]
    np.testing.assert_allclose([row["latency_s"] for row in answer["programs"]], expected, rtol=1e-5)
    assert not (workplace / "ran").exists()


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("T.float32(2)", "__import__('os').system('touch ran')", "__import__('os').system is not TVMScript"),
        ("T.float32(2)", "().__class__", "__class__ is not TVMScript"),
        ("T.float32(2)", "eval('1')", "eval is not TVMScript"),
        ("T.float32(2)", "open('ran', 'w')", "open is not TVMScript"),
        ('T.Buffer((64,), "float32"), filter', "\"__import__('os').system('touch ran')\", filter", "a type such as"),
        ("T.float32(2)", "UNDEFINED", "UNDEFINED"),
        ("def scale(", "def scale(:", "not Python text"),
    ],
)
def test_predict_refuses_what_is_no_tvmscript(workplace, model, refused, old, new, message):
    pytest.importorskip("tvm")
    text = SCRIPT.format(flag="ran")
    assert old in text
    (workplace / "bad.py").write_text(text.replace(old, new))
    error = refused("predict", "bad.py", "--device", "xeon-icelake", "--model", str(model))
    assert "bad.py" in error and message in error
    assert not (workplace / "ran").exists()


@pytest.mark.tvm
def test_predict_refuses_a_script_without_programs(workplace, model, refused):
    pytest.importorskip("tvm")
    (workplace / "empty.py").write_text("x = 1\n")
    assert "no @T.prim_func" in refused("predict", "empty.py", "--device", "xeon-icelake", "--model", str(model))


@pytest.mark.tvm
def test_predict_reads_a_tuning_database(workplace, model, capsys):
    """Two records of one matmul, written by TVM itself."""
    pytest.importorskip("tvm")
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    from cdmpp.programs.script import read_script

    (workplace / "two.py").write_text(SCRIPT.format(flag="ran"))
    matmul = read_script(workplace / "two.py", None)[0].module
    target = Target(devices.get("xeon-icelake").target)
    database = ms.database.JSONDatabase(work_dir=str(workplace))
    workload = database.commit_workload(matmul)
    for tile in (4, 16):
        schedule = Schedule(matmul)
        i, _, _ = schedule.get_loops(schedule.get_sblock("C"))
        schedule.split(i, [None, tile])
        arguments = ms.arg_info.ArgInfo.from_prim_func(matmul["main"])
        database.commit_tuning_record(ms.database.TuningRecord(schedule.trace, workload, [1e-3], target, arguments))
    assert cli.main(["predict", ".", "--device", "xeon-icelake", "--model", str(model), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["programs"]
    assert len(rows) == 2 and len({row["program"] for row in rows}) == 2
    assert all(row["latency_s"] > 0 for row in rows)


@pytest.mark.tvm
def test_predicting_a_script_imports_neither_tvm_nor_what_training_needs(workplace):
    """Each of these costs a second; TVM is imported by a child process in the meantime."""
    pytest.importorskip("tvm")
    (workplace / "two.py").write_text(SCRIPT.format(flag="ran"))
    heavy = {"tvm", "sklearn", "scipy", "pandas", "hydra", "lightning", "matplotlib", "torch._dynamo", "sympy"}
    code = (
        "import sys; from cdmpp.cli.command import main; main(sys.argv[1:]); "
        f"print(sorted({heavy!r} & set(sys.modules)), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, "predict", "two.py", "--device", "xeon-icelake", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
    assert [row["flags"] for row in json.loads(done.stdout)["programs"]] == [["not scheduled"]] * 2
