"""A network tuned without a search: what is written, what TVM makes of it, and that nothing is measured twice."""

import json

import pytest
import torch
import tvm
from tvm import relax
from tvm.s_tir.meta_schedule.database import JSONDatabase

import cdmpp
from cdmpp import devices
from cdmpp.cli.command import main
from cdmpp.errors import CdmppError, DataError
from cdmpp.network.compiled.runtime import CompiledRuntime
from cdmpp.network.compiled.stored_graph import graph_for
from cdmpp.network.workload import Workload
from cdmpp.programs.database import RECORD_FILE, read_lines
from cdmpp.programs.replay import parse_target
from cdmpp.tuning import offline
from cdmpp.tuning.offline import shares

DEVICE = "xeon-icelake-avx2"  # its programs run on every machine that tests


class Small(torch.nn.Module):
    """Two products and a softmax."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(48, 64), torch.nn.Linear(64, 32)

    def forward(self, x):
        return torch.softmax(self.second(torch.relu(self.first(x))), -1)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Small().eval(), (torch.zeros(24, 48),)


@pytest.fixture(scope="module")
def target():
    return parse_target(devices.get(DEVICE).target)


def tuned(network, folder, **options):
    return cdmpp.tune_network(*network, device=DEVICE, folder=folder, candidates=8, progress=False, **options)


def test_a_choice_by_prediction_alone_is_a_database_that_tvm_applies(network, target, tmp_path):
    result = tuned(network, tmp_path / "db")
    assert all(kernel.measured_s is None and kernel.trials == 0 and kernel.predicted_s > 0 for kernel in result.kernels)
    assert result.kernels_s == pytest.approx(sum(k.calls * k.predicted_s for k in result.kernels))
    database = JSONDatabase(work_dir=str(tmp_path / "db"))
    assert len(database.get_all_tuning_records()) == len(result.kernels)
    module = graph_for(Workload(*network)).source().module
    with target, database:
        applied = relax.transform.MetaScheduleApplyDatabase()(module)
    functions = {v.name_hint: f for v, f in applied.functions_items() if isinstance(f, tvm.tirx.PrimFunc)}
    scheduled = [name for name, f in functions.items() if f.attrs and "tirx.is_scheduled" in f.attrs]
    assert len(scheduled) >= len(result.kernels)


def test_the_network_is_predicted_with_what_was_chosen(network, tmp_path):
    result = tuned(network, tmp_path / "db")
    answer = cdmpp.predict_network(*network, device=DEVICE, schedule=f"database:{tmp_path / 'db'}", progress=False)
    told = {kernel.task_id: kernel.latency_s for kernel in answer.kernels}
    assert {k.task_id: pytest.approx(k.predicted_s, rel=1e-4) for k in result.kernels} == told


def test_trials_are_measured_once_and_go_on(network, tmp_path, monkeypatch):
    seconds = offline._seconds
    asked = []
    monkeypatch.setattr(offline, "_seconds", lambda *given: asked.append(given[2]) or seconds(*given))
    first = tuned(network, tmp_path / "db", trials=4)
    assert sum(kernel.trials for kernel in first.kernels) == len(asked) == 4
    assert any(kernel.measured_s is not None and kernel.measured_s > 0 for kernel in first.kernels)
    times = {line.schedule: line.seconds for line in read_lines(tmp_path / "db") if line.schedule in asked}
    again = tuned(network, tmp_path / "db", trials=6)
    assert len(asked) == 6 == sum(kernel.trials for kernel in again.kernels)
    assert times.items() <= {line.schedule: line.seconds for line in read_lines(tmp_path / "db")}.items()


def test_a_program_that_does_not_run_is_kept_as_failed(network, tmp_path, monkeypatch):
    monkeypatch.setattr(offline, "_seconds", lambda *_: None)
    result = tuned(network, tmp_path / "db", trials=2)
    assert sum(kernel.trials for kernel in result.kernels) == 2
    assert all(kernel.measured_s is None for kernel in result.kernels)
    assert sum(line.failed for line in read_lines(tmp_path / "db")) == 2
    monkeypatch.setattr(offline, "_seconds", lambda *_: pytest.fail("measured twice"))
    assert sum(kernel.trials for kernel in tuned(network, tmp_path / "db", trials=2).kernels) == 2


def test_a_killed_run_keeps_what_it_measured(network, tmp_path, monkeypatch):
    answers = iter([1e-5, 2e-5])

    def stop(*_):
        value = next(answers, None)
        if value is None:
            raise KeyboardInterrupt
        return value

    monkeypatch.setattr(offline, "_seconds", stop)
    with pytest.raises(KeyboardInterrupt):
        tuned(network, tmp_path / "db", trials=5)
    found = [line.seconds for line in read_lines(tmp_path / "db")]
    assert (1e-5,) in found and (2e-5,) in found
    JSONDatabase(work_dir=str(tmp_path / "db"))


def test_other_databases_are_left_alone(network, tmp_path):
    tuned(network, tmp_path / "db")
    with pytest.raises(DataError, match="another network"):
        cdmpp.tune_network(
            torch.nn.Linear(8, 8), (torch.zeros(1, 8),), device=DEVICE, folder=tmp_path / "db", candidates=2
        )
    whole = (tmp_path / "db" / RECORD_FILE).read_text()
    for damaged in (whole + "[9", whole + "[99," + whole.splitlines()[0].split(",", 1)[1]):
        (tmp_path / "db" / RECORD_FILE).write_text(damaged)
        with pytest.raises(DataError, match="damaged"):
            tuned(network, tmp_path / "db")
        assert (tmp_path / "db" / RECORD_FILE).read_text() == damaged
    (tmp_path / "db" / RECORD_FILE).write_text(whole)
    (tmp_path / "db" / "cdmpp.json").unlink()
    before = (tmp_path / "db" / RECORD_FILE).read_text()
    with pytest.raises(DataError, match="did not write"):
        tuned(network, tmp_path / "db")
    assert (tmp_path / "db" / RECORD_FILE).read_text() == before


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"trials": -1}, "trials is -1: expected a whole number from 0"),
        ({"device": "a100", "trials": 2}, "cannot be measured here"),
    ],
)
def test_wrong_questions_leave_no_folder(network, tmp_path, options, told):
    with pytest.raises(CdmppError, match=told):
        cdmpp.tune_network(*network, **{"device": DEVICE, "folder": tmp_path / "db", "progress": False, **options})
    assert not (tmp_path / "db").exists()


def test_trials_go_where_the_time_is(network):
    runtime = CompiledRuntime(schedule="best_of:8")
    read = runtime.read(Workload(*network), devices.get(DEVICE))
    graph, chosen = read.graph, runtime.choose(read, devices.get(DEVICE), progress=False).chosen
    given = shares(graph, chosen, 8)
    assert sum(given.values()) == 8
    most = max(graph.counts, key=lambda key: graph.counts[key] * chosen[key].latency_s)
    assert given[most] == max(given.values())
    assert all(given[key] <= chosen[key].candidates for key in given)
    total = sum(one.candidates for one in chosen.values())
    assert sum(shares(graph, chosen, 10 * total).values()) == total


def test_the_command_writes_and_tells(network, tmp_path, capsys):
    assert main(["tune", "mlp", "--device", DEVICE, "--out", str(tmp_path / "db"), "--candidates", "4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["network"] == "mlp" and told["kernels"] and told["kernels_s"] > 0
    assert main(["tune", "mlp", "--device", DEVICE, "--out", str(tmp_path / "db"), "--candidates", "4"]) == 0
    assert "best predicted" in capsys.readouterr().out
