"""Each verb that maps, on a cluster that loses a worker in the middle: nothing lost or doubled, equal to the bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import cdmpp
from cdmpp import cli
from cdmpp.cli import parts, plan
from cdmpp.cli.data.import_data import ImportSettings
from cdmpp.data.codes import cached_codes, code_cache
from cdmpp.data.importers import neusight
from cdmpp.data.loading import load_programs
from cdmpp.data.records import append_records, read_records, read_tasks, write_info, write_tasks
from cdmpp.errors import CdmppError
from cdmpp.evaluation.cell import Cell, CellOptions
from cdmpp.evaluation.evaluation_data import EvaluationData
from cdmpp.evaluation.run import evaluate
from cdmpp.execute.cluster import DaskExecutor
from cdmpp.execute.executor import executing
from tests.data.test_neusight import row
from tests.toy_data import write_toy_dataset

SHIPPED = Path(__file__).parents[2] / "datasets" / "xeon-icelake"


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Another empty cache whenever it is called."""

    def fresh(name: str) -> None:
        monkeypatch.setenv("CDMPP_CACHE", str(tmp_path / f"cache-{name}"))

    return fresh


def small_data_set(folder: Path, n: int) -> Path:
    """``n`` shipped programs of short tasks, without their code vectors."""
    tasks = {key: task for key, task in read_tasks(SHIPPED).items() if len(task.workload) < 1800}
    records = [record for record in read_records(SHIPPED) if record.task_id in tasks][:: 3000 // n][:n]
    write_info(folder, name=folder.name)
    write_tasks(folder, {record.task_id: tasks[record.task_id] for record in records}.values())
    append_records(folder, records)
    return folder


@pytest.mark.tvm
def test_data_codes(killing, caches, tmp_path, capsys):
    folder = small_data_set(tmp_path / "programs", 12)
    found = {}
    for executor in ("local", killing.address):
        caches("here" if executor == "local" else "there")
        assert cli.main(["data", "codes", "--path", str(folder), "--executor", executor]) == 0
        found[executor] = cached_codes(code_cache(folder))
        keys = [key for path in code_cache(folder).glob("chunk-*.parquet") for key in np.asarray(cached(path))]
        assert len(keys) == len(set(keys)) == 12
        assert "12 programs with a code vector" in capsys.readouterr().out
    assert_equal(found["local"], found[killing.address])


def test_model_evaluate(killing, tmp_path):
    write_toy_dataset(tmp_path / "toy")
    data = EvaluationData(load_programs([tmp_path / "toy"], progress=False))
    models = ["constant", "roofline", "cdmpp"]
    here, there = (
        CellOptions(tmp_path / name, overrides=("trainer.epochs=1", "model.layers=1")) for name in ("here", "there")
    )
    one = evaluate(data, "toy", ["by_task"], [0, 1], models, here, progress=False)
    with executing(killing.address):
        two = evaluate(data, "toy", ["by_task"], [0, 1], models, there, progress=False)
    assert [figure.value for figure in one] == [figure.value for figure in two] and len(one) == len(two) > 0
    files = sorted(path.relative_to(here.out) for path in here.out.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(there.out) for path in there.out.rglob("*") if path.is_file())
    cells = [path for path in files if path.parts[0] == "cells"]
    assert len(cells) == 2 * 6
    for path in cells:
        if path.suffix == ".npz":
            assert_equal(dict(np.load(here.out / path)), dict(np.load(there.out / path)))
        else:
            own, others = (json.loads((out / path).read_text()) for out in (here.out, there.out))
            assert {**own, "seconds": 0} == {**others, "seconds": 0}
    weights = Cell("by_task", 1, "cdmpp").model_folder(Path(), "toy") / "model" / "model.safetensors"
    assert (here.out / weights).read_bytes() == (there.out / weights).read_bytes()


@pytest.mark.tvm
def test_data_import_of_programs(killing, tmp_path):
    folder = small_data_set(tmp_path / "programs", 10)
    tasks = read_tasks(folder)
    lines = [
        {"workload": tasks[one.task_id].workload, "trace": json.loads(one.schedule), "latency_s": one.latency_s,
         "network": "net"}
        for one in read_records(folder)
    ]  # fmt: skip
    broken = {"tvmscript": "no program", "latency_s": 1.0}
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (*lines, broken)))
    from cdmpp.data.importers.programs import import_programs

    reports = {}
    for where in ("local", killing.address):
        out = tmp_path / where[:5]
        with executing(where):
            reports[out] = str(import_programs(tmp_path / "lines.jsonl", out, "xeon-icelake", None, "skip", False))
    one, other = reports
    assert reports[one] == reports[other] and "1 broken" in reports[one]
    assert len(read_records(other)) == 10
    assert_same_files(one, other)


def test_data_import_of_operators(killing, tmp_path, monkeypatch):
    monkeypatch.setattr(neusight, "_TOGETHER", 4)
    rows = [row("t4", "linear", 1e-4 + 1e-6 * n, rows=64, inner=128, cols=8 * n) for n in range(1, 33)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "ops.parquet")
    one, other = tmp_path / "one", tmp_path / "other"
    here = neusight.import_neusight(tmp_path, one, progress=False)
    with executing(killing.address):
        assert str(neusight.import_neusight(tmp_path, other, progress=False)) == str(here)
    assert len(read_records(other)) == 32
    assert_same_files(one, other)


@pytest.mark.parametrize("source", ["metaschedule", "ansor_features"])
def test_an_import_that_costs_no_more_than_sending_it_refuses_a_cluster(source):
    settings = {"path": "x", "device": "a100", "executor": "dask://127.0.0.1:8786"}
    with pytest.raises(CdmppError, match=f"a line of source={source} .* a cluster gains nothing: leave executor out"):
        ImportSettings.from_dict({"source": source, **settings})


@pytest.mark.parametrize("words", [[], ["--sweep", "batch=1,2"]])
def test_compare(killing, capsys, words):
    asked = ["compare", "bert_tiny", "--seq", "16", "--runtime", "torch", "--json", *words]
    devices = "a100,t4,l4,h100" if words else "a100,t4,l4,nothing"
    found = [
        answered([*asked, "--devices", devices, "--executor", where], capsys) for where in ("local", killing.address)
    ]
    assert found[0] == found[1] and len(json.loads(found[0])["devices"]) == 4


@pytest.mark.tvm
def test_network(killing, caches, tmp_path, capsys):
    asked = ["network", "bert_tiny", "--seq", "16", "--device", "xeon-icelake", "--schedule", "best_of:3", "--json"]
    found, kept = [], []
    for where in ("local", killing.address):
        caches(where[:5])
        found.append(answered([*asked, "--executor", where], capsys))
        kept.append(tmp_path / f"cache-{where[:5]}")
    assert found[0] == found[1] and len(json.loads(found[0])["kernels"]) > 5
    one, other = (sorted(path.relative_to(at) for path in at.rglob("asts.parquet")) for at in kept)
    assert one == other and len(one) > 5
    for name in one:
        assert (kept[0] / name).read_bytes() == (kept[1] / name).read_bytes(), name


ON_FOUR = ["--device", "a100", "--ranks", "4", "--link", "nvlink3"]
LAYERS = """name,forward_s,backward_s,parameter_bytes,output_bytes
a,1e-3,2e-3,4000000,100000
b,2e-3,4e-3,8000000,100000
c,1e-3,3e-3,4000000,100000
d,3e-3,6e-3,4000000,100000
"""


def test_plan(killing, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "WORTH_SENDING", 0.0)
    (tmp_path / "layers.csv").write_text(LAYERS)
    asked = ["plan", str(tmp_path / "layers.csv"), *ON_FOUR, "--replays", "6", "--json"]
    found = [answered([*asked, "--executor", where], capsys) for where in ("local", killing.address)]
    assert found[0] == found[1] and sum(one["by"] == "replay" for one in json.loads(found[0])["plans"]) >= 6


def test_replays_that_are_over_before_a_worker_were_ready_stay_here(cluster, capsys, tmp_path, monkeypatch):
    (tmp_path / "layers.csv").write_text(LAYERS)
    asked = ["plan", str(tmp_path / "layers.csv"), *ON_FOUR, "--replays", "2", "--json"]
    monkeypatch.setattr(plan, "WORTH_SENDING", 1e9)
    monkeypatch.setattr(DaskExecutor, "submit", lambda *_: pytest.fail("sent"))
    found = [answered([*asked, "--executor", where], capsys) for where in ("local", cluster.address)]
    assert found[0] == found[1]


def test_questions_without_a_ranking_refuse_a_cluster(cluster, capsys):
    assert cli.main(["plan", "bert_tiny", *ON_FOUR, "--executor", cluster.address, "--strategy", "ddp"]) == 2
    assert "replays the plans of a ranking of all ways to train: leave it out" in capsys.readouterr().err


def test_files_that_differ_are_refused(cluster, capsys, tmp_path, monkeypatch):
    (tmp_path / "layers.csv").write_text(LAYERS)
    monkeypatch.setattr(plan, "WORTH_SENDING", 0.0)
    monkeypatch.setattr(parts, "read_digest", lambda _: "another")
    assert cli.main(["plan", str(tmp_path / "layers.csv"), *ON_FOUR, "--executor", cluster.address]) == 2
    assert "are not those of the machine that asks: work in a folder that all" in capsys.readouterr().err


@pytest.mark.tvm
def test_tune(killing, caches, tmp_path):
    layers = [torch.nn.Linear(16 * n, 16 * (n + 1)) for n in range(1, 6)]
    network = torch.nn.Sequential(*layers).eval()
    found = {}
    for where in ("local", killing.address):
        caches(where[:5])
        with executing(where):
            found[where] = cdmpp.tune_network(
                network, (torch.zeros(4, 16),), device="xeon-icelake-avx2", folder=tmp_path / where[:5], candidates=4,
                progress=False,
            )  # fmt: skip
    one, other = (replace(made, folder=Path()) for made in found.values())
    assert one == other and len(one.kernels) >= 5
    assert_same_files(*(made.folder for made in found.values()))


def answered(words, capsys) -> str:
    assert cli.main(words) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def assert_same_files(one: Path, other: Path) -> None:
    """Of equal names and bytes, but for the names of the folders and the times in them."""
    names = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(other) for path in other.rglob("*") if path.is_file())
    for name in names:
        if name.name != "dataset.json":
            assert (one / name).read_bytes() == (other / name).read_bytes(), name


def cached(path: Path) -> list[str]:
    from cdmpp.data.derived_table import read_codes

    return list(read_codes(path))


def assert_equal(one, other) -> None:
    assert sorted(one) == sorted(other)
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])
        assert array.dtype == other[name].dtype
