"""Each verb that maps, on a cluster that loses a worker in the middle: nothing lost or doubled, equal to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cdmpp import cli
from cdmpp.data.codes import cached_codes, code_cache
from cdmpp.data.loading import load_programs
from cdmpp.data.records import append_records, read_records, read_tasks, write_info, write_tasks
from cdmpp.evaluation.cell import Cell, CellOptions
from cdmpp.evaluation.evaluation_data import EvaluationData
from cdmpp.evaluation.run import evaluate
from cdmpp.execute.executor import executing
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


def cached(path: Path) -> list[str]:
    from cdmpp.data.derived_table import read_codes

    return list(read_codes(path))


def assert_equal(one, other) -> None:
    assert sorted(one) == sorted(other)
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])
        assert array.dtype == other[name].dtype
