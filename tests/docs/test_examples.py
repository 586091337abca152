"""Every example script runs to its end and prints what it promises."""

from __future__ import annotations

import csv
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from cdmpp.expression import RunTable

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTED = {
    "network": "us for a batch of 512",
    "training_step": "on eight GPUs",
    "plan": "ms with this plan",
    "plan_of_layers": "4 stages x 1 replicas: 606 ms",
    "trace": "with linear layers twice as fast",
    "new_device": "by the datasheet",
    "parameter_server": "async: ",
    "partition": "delayed: 0.720 s a step",
    "partition_run": "gradients 2 updates late",
    "remote": "the server ended with status 0",
}


def run(name: str, where: Path, monkeypatch, capsys) -> str:
    monkeypatch.chdir(where)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.parametrize("name", PRINTED)
def test_example_runs(name, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    assert PRINTED[name] in run(name, tmp_path, monkeypatch, capsys)


@pytest.mark.tvm
def test_cost_model_example_runs(tmp_path, monkeypatch, capsys):
    tvm = pytest.importorskip("tvm")
    from cdmpp.programs.intrinsics import intrinsics_for

    with intrinsics_for(
        tvm.target.Target("llvm")
    ):  # TVM would import those of GPUs too: 20 s, or 100 in a large process
        assert "measured programs takes" in run("cost_model", tmp_path, monkeypatch, capsys)


def test_times_of_runs_are_a_table_that_is_continued(tmp_path):
    pytest.importorskip("torch")
    words = [sys.executable, EXAMPLES / "time_runs.py", "torch", "runs.csv", "--seconds", "0.2", "--processes"]
    for processes in ("1", "2"):  # a process of its own, because those that it starts import its main module
        done = subprocess.run([*words, processes], cwd=tmp_path, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        assert f"runs of torch on {processes} processes" in done.stdout
    with (tmp_path / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["processes"] for row in rows} == {"1", "2"}
    numbers = {name: [float(row[name]) for row in rows] for name in rows[0] if name != "framework"}
    table = RunTable.of(numbers, "step_s", ["processes"])
    assert (table.times_s > 0).all()
    assert len(table) == len(rows)


def test_every_example_is_run():
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    assert scripts == {
        *PRINTED,
        "cost_model",
        "matmul",
        "time_runs",
    }  # matmul is a program that is read, see test_pages
