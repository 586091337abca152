"""Operators of PyTorch become records: with a make-believe machine, and once with a real one that trains a model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cdmpp import cli, devices
from cdmpp.cli.data import measure  # noqa: F401  (it offers the defaults to Hydra)
from cdmpp.data.loading import load_dataset
from cdmpp.data.records import read_info, read_records, read_tasks
from cdmpp.data.sources import data_folders, load_device
from cdmpp.errors import CdmppError, DataError, NoRecordsError
from cdmpp.measure import again, reference_kernels, torch_collector
from cdmpp.measure.again import Repeater
from cdmpp.measure.collector import Collector
from cdmpp.measure.settings import MeasureSettings
from cdmpp.measure.torch_collector import TorchCollector, TorchRepeater
from cdmpp.measure.torch_plan import CallLimits, operator_plan
from cdmpp.operators.operator import LEARNED, EagerOperator
from cdmpp.operators.operator_task import served_by
from cdmpp.operators.operator_vector import operator_program
from cdmpp.recipes.compose import compose
from tests.measure.machine import Machine, settings

DEVICE = "xeon-icelake"


def asked(**changes: Any) -> MeasureSettings:
    return settings(runtime="torch", **{"operators": 20, "zoo": {}, **changes})


def planned(count: int, **changes: Any) -> list[EagerOperator]:
    told = asked(**changes)
    return operator_plan(CallLimits.of(devices.get(DEVICE), told.call_ms, told.call_mb), count, told.seed)


def kept(folder: Path) -> list[Any]:
    """Records without the moment at which each was taken."""
    return sorted((dataclasses.replace(one, measured_at="") for one in read_records(folder)), key=lambda r: r.record_id)


def test_operators_become_records_with_their_asts(machine: Machine, tmp_path: Path) -> None:
    found = TorchCollector(asked(), tmp_path).run()
    records, tasks, info = read_records(tmp_path), read_tasks(tmp_path), read_info(tmp_path)
    assert found["programs"] == len(records) == 20 and len(machine.visits) == 40
    assert {tasks[one.task_id].op_name for one in records} == {operator.to_json() for operator in planned(20)}
    assert {one.schedule for one in records} == {served_by("torch")}
    assert {one.protocol for one in records} == {"torch-cpu-v1"} and info["features"] == "library"
    assert json.loads(records[0].software)["torch"] == torch.__version__
    assert "torch.set_num_threads(1)" in info["protocols"]["torch-cpu-v1"]
    dataset = load_dataset(tmp_path, progress=False)
    assert dataset.features == "library" and len(dataset) == 20
    for row, task_id in enumerate(dataset.task_ids):
        expected = operator_program(EagerOperator.from_json(tasks[task_id].op_name), "cpu")
        assert np.array_equal(dataset.asts.codes[row], expected.code)
    assert dataset.asts.target_kinds.tolist() == [0] * 20


def test_a_kill_costs_a_batch_and_the_rest_is_the_same(machine: Machine, tmp_path: Path) -> None:
    TorchCollector(asked(), tmp_path / "whole").run()
    machine.kill_after = len(machine.visits) + 25
    with pytest.raises(KeyboardInterrupt):
        TorchCollector(asked(), tmp_path / "killed").run()
    assert 0 < len(read_records(tmp_path / "killed")) < 20
    machine.kill_after = 10**9
    TorchCollector(asked(), tmp_path / "killed").run()
    assert kept(tmp_path / "killed") == kept(tmp_path / "whole")
    assert len(load_dataset(tmp_path / "killed", progress=False)) == 20
    visited = len(machine.visits)
    assert TorchCollector(asked(), tmp_path / "killed").run()["programs"] == 20 and len(machine.visits) == visited


def test_a_larger_plan_continues_and_no_operator_comes_twice(machine: Machine, tmp_path: Path) -> None:
    TorchCollector(asked(), tmp_path).run()
    TorchCollector(asked(operators=30), tmp_path).run()
    assert set(machine.visits) == {operator.to_json() for operator in planned(30)} and len(machine.visits) == 60
    TorchCollector(asked(operators=30, seed=1, budget=35), tmp_path).run()
    assert len(read_records(tmp_path)) == 35


def test_operators_that_fail_are_told_and_the_others_measured(machine: Machine, tmp_path: Path) -> None:
    slow, hung, broken = (operator.to_json() for operator in planned(3))
    machine.broken = {slow: {"cause": "too slow", "run_s": 3.0}, hung: {"cause": "timeout"},
                      broken: {"cause": "time_torch error", "message": "out of memory"}}  # fmt: skip
    found = TorchCollector(asked(), tmp_path).run()
    assert found["programs"] == 17 and found["failures"] == {"too slow": 1, "timeout": 1, "time_torch error": 1}
    TorchCollector(asked(), tmp_path).run()
    assert machine.visits.count(slow) == machine.visits.count(hung) == 1


def test_recorded_operators_are_timed_again(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TorchCollector(asked(), tmp_path).run()
    monkeypatch.setattr(again, "MIN_AGE_S", -1.0)
    assert TorchRepeater(asked(), tmp_path, 5).run()["programs"] == 5
    with pytest.raises(DataError, match="features=library, these have features=cdmpp"):
        Repeater(settings(), tmp_path, 5).run()


def test_operators_and_programs_share_no_folder_and_no_training(machine: Machine, tmp_path: Path) -> None:
    assert asked().data_folder == Path("datasets/xeon-icelake-torch")
    TorchCollector(asked(), tmp_path / "torch").run()
    with pytest.raises(DataError, match="of one kind, give another folder"):
        Collector(settings(), tmp_path / "torch").run()
    Collector(settings(budget=2), tmp_path / "programs").run()
    with pytest.raises(DataError, match="features=cdmpp, these have features=library"):
        TorchCollector(asked(), tmp_path / "programs").run()
    assert data_folders(DEVICE, [tmp_path], features="library") == [tmp_path / "torch"]
    assert data_folders(DEVICE, [tmp_path]) == [tmp_path / "programs"]
    with pytest.raises(NoRecordsError):
        data_folders(DEVICE, [tmp_path / "torch"])
    with pytest.raises(DataError, match="cdmpp data measure device=xeon-icelake runtime=torch"):
        load_device(DEVICE, [tmp_path / "programs"], features="library")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runtime=onnx"], "runtime is 'onnx'; one of tvm, torch"),
        (["kit=build"], "leave out kit=build"),
        (["runner=rpc", "tracker=there:1"], "leave out runner=rpc"),
        (["networks=[resnet81]"], "nearest: resnet18"),
        (["tasks_from=there"], "leave out tasks_from=there"),
        (["dtype=int8"], "dtype is 'int8'; one of float64"),
        (["operators=0"], "operators is 0: expected a whole number from 1"),
        (["call_mb=-1"], "call_mb is -1.0: expected a number above 0"),
        (["device=apple-m1-gpu"], "apple-m1-gpu is a metal one"),
    ],
)
def test_what_cannot_be_timed_is_refused_by_name(words: list[str], message: str) -> None:
    with pytest.raises(CdmppError, match=message):
        MeasureSettings.from_dict(compose("measure", [f"device={DEVICE}", "runtime=torch", *words]))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_here_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="device t4 is a GPU, and torch .* sees none here"):
        TorchCollector(asked(device="t4"), tmp_path)


def test_a_real_run_trains_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    operators, data, out = planned(60, call_ms=0.2, call_mb=4), tmp_path / "data", tmp_path / "out"
    refused = EagerOperator.parse("max_pool2d", "1x2x9x3", padding=3)  # PyTorch pads by half of a kernel at most
    monkeypatch.setattr(torch_collector, "operator_plan", lambda *_: [*operators, refused])
    # Whatever else runs meanwhile.
    monkeypatch.setattr(reference_kernels.ReferenceKernels, "quiet", lambda self, run_s: bool(run_s))
    report = TorchCollector(asked(batch=100, force=True), data).run()
    assert report["programs"] == 60 and report["failures"] == {"time_torch error": 1}
    assert "pad should be at most half" in (data / "failures.jsonl").read_text()
    tasks = read_tasks(data)
    assert {EagerOperator.from_json(task.op_name).name for task in tasks.values()} == set(LEARNED)
    assert all(1e-7 < record.latency_s < 0.1 for record in read_records(data))
    quick = ["trainer.epochs=2", "baselines=[]", "plots=false", "progress=false", f"out={out}"]
    told = [f"device={DEVICE}", "features=library", "model=library", f"data.path=[{data}]", *quick]
    assert cli.main(["train", *told]) in (0, None)
    capsys.readouterr()
    assert cli.main(["predict", "op", "linear", "512x1024x1024", "--device", DEVICE, "--model", str(out / "model"),
                     "--json"]) == 0  # fmt: skip
    (row,) = json.loads(capsys.readouterr().out)["programs"]
    assert 1e-5 < row["latency_s"] < 1.0
