"""Which programs are compiled to be read, and that what nobody looked at does not win over what was seen."""

import numpy as np
import pytest

import cdmpp
from benchmarks.workloads import tasks
from cdmpp import devices
from cdmpp.programs.replay import parse_target
from cdmpp.programs.sampling import sample_programs
from cdmpp.tuning import two_stage as module

TARGET = parse_target(devices.get("xeon-icelake-avx2").target)


@pytest.fixture(scope="module")
def modules():
    programs = sample_programs(tasks()["matmul"], TARGET, 12, seed=5, mutants=0.0)
    return {number: program.module for number, program in enumerate(programs)}


@pytest.fixture
def two_stage():
    return cdmpp.make_cost_model("xeon-icelake-avx2")._inst.two_stage


def test_the_best_by_their_asts_are_compiled_and_one_of_them_wins(two_stage, modules):
    two_stage.look = 0
    fast = two_stage.judged(modules, TARGET, "task").log_latency
    two_stage.look = 4
    judged = two_stage.judged(modules, TARGET, "task")
    assert judged.compiled <= set(sorted(fast, key=fast.get)[:4]) and judged.compiled
    assert min(judged.log_latency, key=judged.log_latency.get) in judged.compiled
    others = [key for key in modules if key not in judged.compiled]
    moved = [judged.log_latency[key] - fast[key] for key in others]
    assert np.ptp(moved) == pytest.approx(0, abs=1e-6)  # all by the same


def test_what_takes_long_to_compile_is_not_compiled_and_comes_after_what_was(two_stage, modules, monkeypatch):
    two_stage.look = 0
    fast = two_stage.judged(modules, TARGET, "task").log_latency
    best = min(fast, key=fast.get)
    monkeypatch.setattr(
        module.TwoStageScorer,
        "_late",
        staticmethod(lambda programs: np.array([number == best for number in range(len(programs))])),
    )
    two_stage.look = 3
    judged = two_stage.judged(modules, TARGET, "task")
    assert best not in judged.compiled
    assert judged.log_latency[best] >= max(judged.log_latency[key] for key in judged.compiled)
    monkeypatch.undo()
    monkeypatch.setattr(module, "MOST_STEPS", -1)
    assert not two_stage.judged(modules, TARGET, "task").compiled


def test_measured_programs_move_their_own_and_their_like(two_stage, modules):
    two_stage.look = 0
    before = two_stage.judged(modules, TARGET, "task").log_latency
    measured = {key: 3.0 * float(np.exp(before[key])) for key in list(modules)[:6]}
    assert (
        two_stage.learn(
            modules={key: modules[key] for key in measured}, measured_s=measured, target=TARGET, task="task"
        )
        == 6
    )
    after = two_stage.judged(modules, TARGET, "task").log_latency
    assert np.mean([after[key] - before[key] for key in modules]) == pytest.approx(np.log(3.0), abs=0.25)
    elsewhere = two_stage.judged({0: modules[0]}, TARGET, "another task").log_latency[0]
    assert elsewhere != pytest.approx(after[0], abs=0.05)
