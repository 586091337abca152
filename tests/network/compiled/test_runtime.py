"""From a torch module to the time of a network: real programs, a shipped model, an own cache."""

from __future__ import annotations

import numpy as np
import pytest

import cdmpp
from cdmpp import devices
from cdmpp.errors import CdmppError, DataError
from cdmpp.network.compiled.runtime import CompiledRuntime
from cdmpp.network.compose import compose
from cdmpp.network.workload import Workload

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

DEVICE = "epyc-genoa"


class Small(torch.nn.Module):
    """Two equal layers, a softmax over them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x):
        return torch.softmax(self.second(torch.relu(self.first(x))), dim=-1)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("CDMPP_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield patch
    patch.undo()


@pytest.fixture(scope="module")
def answer(cache):
    return ask()


def ask(**options):
    torch.manual_seed(0)
    options = {"device": DEVICE, "model": DEVICE, "schedule": "best_of:8", "progress": False, **options}
    workload = Workload(Small().eval(), torch.randn(32, 64), batch=options.pop("batch", None))
    return cdmpp.predict_network(workload, **options)


def test_the_total_is_the_sum_of_what_it_is_made_of(answer):
    assert answer.latency_s > 0 and answer.batch == 32 and answer.schedule == "best_of:8"
    assert answer.latency_s == pytest.approx(answer.kernels_s + answer.cold_s + answer.overhead_s)
    assert answer.weight_bytes == 2 * (64 * 64 + 64) * 4 and answer.folded == 2
    assert sum(kernel.count for kernel in answer.kernels) == len(answer.timeline.spans) - 1
    low, high = answer.intervals[0.8]
    assert low < answer.latency_s < high
    assert any(kernel.candidates > 1 for kernel in answer.kernels)


def test_candidates_are_there_though_they_cannot_be_kept(answer, cache, tmp_path, monkeypatch, caplog):
    from cdmpp.network.compiled.candidates import candidates_of
    from cdmpp.network.compiled.stored_graph import graph_for

    tasks = graph_for(Workload(Small().eval(), torch.randn(32, 64))).graph.tasks
    own = dict([max(tasks.items(), key=lambda item: item[1].flops)])
    kept = candidates_of(own, devices.get(DEVICE), 2)
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path))
    (tmp_path / "candidates").write_text("no folder")  # stands for every reason why a file cannot be written
    found = candidates_of(own, devices.get(DEVICE), 2)
    assert [one.schedules for one in found.values()] == [one.schedules for one in kept.values()]
    assert any("cannot write" in one.getMessage() for one in caplog.records)
    assert not list(tmp_path.rglob("*.tmp"))


def test_the_fastest_of_the_compiled_candidates_was_chosen(answer, cache):
    from cdmpp.network.compiled.candidates import candidates_of
    from cdmpp.network.compiled.choice import worth_compiling
    from cdmpp.network.compiled.stored_graph import graph_for
    from cdmpp.programs.replay import replay

    torch.manual_seed(0)
    tasks = graph_for(Workload(Small().eval(), torch.randn(32, 64))).graph.tasks
    kernel = max(answer.kernels, key=lambda one: one.flops)
    sampled = candidates_of({kernel.task_id: tasks[kernel.task_id]}, devices.get(DEVICE), 8)[kernel.task_id]
    predictor = cdmpp.load_model(DEVICE)
    kept = worth_compiling(predictor.chances(sampled.asts, DEVICE, ["it"] * len(sampled.schedules)), 8)
    schedules = [sampled.schedules[i] for i in kept]
    programs = [replay(tasks[kernel.task_id].workload, s, devices.get(DEVICE).target) for s in schedules]
    seconds = predictor.predict(programs, DEVICE).latency_s
    assert len(programs) > 1 and kernel.candidates == 8
    assert kernel.latency_s == pytest.approx(seconds.min(), rel=1e-4)
    assert kernel.schedule == schedules[int(np.argmin(seconds))]


def test_a_second_question_needs_no_worker(answer, cache, monkeypatch):
    monkeypatch.setattr("cdmpp.platform.workers.Worker.launch", lambda self: pytest.fail("a worker was started"))
    assert ask() == answer


def test_the_same_programs_are_asked_of_another_model(answer, cache):
    torch.manual_seed(0)
    runtime, device = CompiledRuntime(DEVICE, "best_of:8"), devices.get(DEVICE)
    read = runtime.read(Workload(Small().eval(), torch.randn(32, 64)), device)
    prepared = runtime.choose(read, device, progress=False)
    priced = [prepared.with_model(name, progress=False).priced() for name in (DEVICE, "cpus")]
    again, other = (compose(one, runtime.launch(one)) for one in priced)
    assert again.latency_s == pytest.approx(answer.latency_s, rel=1e-5)
    assert [k.schedule for k in other.kernels] == [k.schedule for k in answer.kernels]
    assert other.model == "cpus" and other.latency_s != answer.latency_s


def test_a_damaged_file_in_the_cache_is_made_again(answer, cache):
    from cdmpp.platform.paths import cache_root

    for path in cache_root().rglob("chosen.json"):
        path.write_text("{")
    assert ask() == answer


def test_what_was_not_compiled_in_time_is_compiled_another_day(answer, monkeypatch, tmp_path):
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path))
    with monkeypatch.context() as hurry:
        hurry.setattr("cdmpp.network.compiled.choice._PATIENCE_S", 0.0)
        hasty = ask()
    flagged = [kernel for kernel in hasty.kernels if "no machine code" in kernel.flags]
    assert flagged and any("no machine code" in warning for warning in hasty.warnings)
    assert ask() == answer


def test_kept_modules_are_what_their_text_says(cache, monkeypatch, tmp_path):
    from tvm.ir import assert_structural_equal

    from cdmpp.network.compiled.stored_graph import graph_for
    from cdmpp.programs.replay import parse_workload, parsed_path
    from cdmpp.programs.script import parse_text

    tasks = [task for name in ("squeezenet1_1", "bert_tiny") for task in graph_for(Workload(name)).graph.tasks.values()]
    paths = [parsed_path(task.workload) for task in tasks]
    kept = [task for task, path in zip(tasks, paths, strict=True) if path.is_file()]
    assert len(kept) > 0.9 * len(tasks)
    for task in kept:
        parse_workload.cache_clear()
        read, parsed = parse_workload(task.workload), parse_text(task.workload, "a task")
        assert_structural_equal(read, parsed)
        assert read.script() == parsed.script()
    parsed_path(kept[0].workload).write_text("{")
    parse_workload.cache_clear()
    assert parse_workload(kept[0].workload).script() == kept[0].workload


def test_untuned_says_that_nobody_runs_it(cache):
    untuned = ask(schedule="untuned")
    assert any("nobody runs these" in warning for warning in untuned.warnings)
    assert all(kernel.candidates == 1 for kernel in untuned.kernels)


def test_a_tuning_database_is_asked_for_each_kernel(answer, cache, tmp_path):
    import tvm
    from tvm.s_tir import Trace
    from tvm.s_tir import meta_schedule as ms

    from cdmpp.network.compiled.stored_graph import graph_for
    from cdmpp.programs.replay import parse_workload, replay_schedule

    torch.manual_seed(0)
    tasks = graph_for(Workload(Small().eval(), torch.randn(32, 64))).graph.tasks
    kernel = max(answer.kernels, key=lambda one: one.flops)
    module = parse_workload(tasks[kernel.task_id].workload)
    database = ms.database.JSONDatabase(work_dir=str(tmp_path))
    workload, target = database.commit_workload(module), tvm.target.Target(devices.get(DEVICE).target)
    info = ms.arg_info.ArgInfo.from_prim_func(module["main"])
    for seconds, schedule in ((2e-3, "[[],[]]"), (1e-3, kernel.schedule)):
        trace = replay_schedule(tasks[kernel.task_id].workload, schedule).trace
        assert isinstance(trace, Trace)
        database.commit_tuning_record(ms.database.TuningRecord(trace, workload, [seconds], target, info))
    tuned = ask(schedule=f"database:{tmp_path}")
    found = {one.task_id: one for one in tuned.kernels}
    assert found[kernel.task_id].latency_s == pytest.approx(kernel.latency_s, rel=1e-4)
    assert any("are not in" in warning and "untuned" in warning for warning in tuned.warnings)


def test_a_database_of_another_network_is_refused(cache, tmp_path):
    for name in ("database_workload.json", "database_tuning_record.json"):
        (tmp_path / name).write_text("")
    with pytest.raises(DataError):
        ask(schedule=f"database:{tmp_path}")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"device": "epyc-geno"}, "unknown device 'epyc-geno'; nearest: epyc-genoa"),
        ({"schedule": "best"}, "best_of:K"),
        ({"model": "nothing"}, "neither a model folder"),
        ({"batch": 4}, "batch"),
    ],
)
def test_what_cannot_be_is_named(cache, options, told):
    with pytest.raises(CdmppError, match=told):
        ask(**options)


def test_a_device_without_measured_gaps_says_so(cache):
    told = " ".join(ask(device="xeon-icelake", schedule="best_of:1").warnings)
    if devices.get("xeon-icelake").launch_overheads.call_s is None:
        assert "launch gaps of xeon-icelake were never measured" in told


def test_the_graph_of_a_name_comes_from_the_cache(cache, monkeypatch):
    from cdmpp.network.compiled import stored_graph

    first = stored_graph.graph_for(Workload("mlp"))
    monkeypatch.setattr(stored_graph, "read_network", lambda *_, **__: pytest.fail("it was read again"))
    assert stored_graph.graph_for(Workload("mlp")).graph == first.graph
    with pytest.raises(BaseException, match="it was read again"):
        stored_graph.graph_for(Workload("mlp", batch=2))


@pytest.mark.slow
def test_a_network_that_runs_here_calls_what_its_graph_says(cache):
    measured = ask(measure=True)
    assert measured.measured_s > 0 and all(kernel.measured_s > 0 for kernel in measured.kernels)
