"""Networks of the zoo as the operators that PyTorch runs of them, measured before random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdmpp import devices
from cdmpp.data.records import read_info, read_records, read_tasks
from cdmpp.measure import torch_networks
from cdmpp.measure.torch_collector import NETWORK, TorchCollector
from cdmpp.measure.torch_networks import import_operators, network_tasks
from cdmpp.measure.torch_plan import CallLimits
from cdmpp.measure.worker import OPERATIONS, answer
from cdmpp.operators.operator import EagerOperator
from cdmpp.programs.zoo import read_zoo
from tests.measure.machine import Machine, settings

LIMITS = CallLimits.of(devices.get("xeon-icelake"), 250.0, None)
LINEAR, RELU = EagerOperator.parse("linear", "8x16x32"), EagerOperator.parse("relu", "8x32")
HUGE = EagerOperator.parse("relu", "1048576x1048576")


@pytest.fixture
def zoo(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two networks that share a linear operator; the third cannot be exported."""
    asked, worker = [], machine.answer
    of = {"a": [[LINEAR.to_json(), 3], [RELU.to_json(), 1]], "b": [[LINEAR.to_json(), 2], [HUGE.to_json(), 1]]}

    def told(message: dict[str, Any]) -> dict[str, Any]:
        if message["op"] != "import_operators":
            return worker(message)
        asked.append(message["spec"]["build"])
        if asked[-1] not in of:
            return {"cause": "import_operators error", "message": "no such layer"}
        return {"operators": of[asked[-1]], "unknown": {"aten.fft": 1} if asked[-1] == "b" else {}}

    monkeypatch.setattr(machine, "answer", told)
    return asked


def collected(folder: Path, *networks: str, **changes: Any) -> dict[str, Any]:
    entries = {name: {"build": name, "input": {}} for name in "abc"}
    chosen = settings(runtime="torch", zoo=entries, networks=list(networks) or None, **{"operators": 5, **changes})
    return TorchCollector(chosen, folder).run()


def test_operators_of_networks_come_before_the_random_ones(zoo, machine, tmp_path, caplog):
    found = collected(tmp_path, "a", "b", "c")
    assert found["programs"] == 7 and found["failures"] == {"import_operators error": 1} and zoo == ["a", "b", "c"]
    assert set(machine.visits[:2]) <= {LINEAR.to_json(), RELU.to_json()}
    tasks = {task.op_name: task.networks for task in read_tasks(tmp_path).values()}
    assert tasks[LINEAR.to_json()] == {"a": 3, "b": 2} and tasks[RELU.to_json()] == {"a": 1}
    assert HUGE.to_json() not in tasks and list(tasks.values()).count({NETWORK: 1}) == 5
    assert read_info(tmp_path)["networks"] == ["a", "b", NETWORK] and "aten.fft" in caplog.text


def test_networks_join_what_is_measured_already(zoo, machine, tmp_path):
    assert collected(tmp_path)["programs"] == 5 and zoo == []
    assert collected(tmp_path, "a", budget=6)["programs"] == 6
    assert collected(tmp_path, "a")["programs"] == len(read_records(tmp_path)) == 7 and zoo == ["a"]
    assert len(machine.visits) == 14


def test_a_real_network_becomes_operators():
    reply = answer(OPERATIONS["import_operators"], {"op": "import_operators", "spec": read_zoo()["mlp"]})
    found = {EagerOperator.from_json(text): calls for text, calls in reply["operators"]}
    assert {"linear", "relu"} & {operator.name for operator in found} and reply["unknown"] == {}
    tasks = network_tasks(reply["operators"], "mlp", "float16", LIMITS, "torch")
    assert {EagerOperator.from_json(task.op_name).dtype for task in tasks} == {"float16"}
    assert sum(task.networks["mlp"] for task in tasks) == sum(found.values())


def test_what_stands_for_nothing_is_counted(monkeypatch):
    def refuse(node):
        raise torch_networks.UnsupportedProgramError("of no kind")

    monkeypatch.setattr(torch_networks, "calls_of", refuse)
    reply = import_operators({"spec": read_zoo()["mlp"]})
    assert reply["operators"] == [] and sum(reply["unknown"].values()) > 0
