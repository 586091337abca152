"""Ranking schedules of one workload."""

import numpy as np
import pytest
import tvm

import cdmpp
from benchmarks.workloads import tasks
from cdmpp import devices
from cdmpp.errors import CdmppError
from cdmpp.programs.replay import parse_target, parse_workload
from cdmpp.programs.sampling import sample_programs

DEVICE = "epyc-genoa"


@pytest.fixture(scope="module")
def programs():
    return sample_programs(tasks()["matmul"], parse_target(devices.get(DEVICE).target), 12, seed=3, mutants=0.0)


def test_schedules_modules_and_traces_are_ranked_alike(programs):
    task = tasks()["matmul"]
    traces = cdmpp.rank_schedules(task, [p.trace for p in programs], DEVICE, look=0)
    modules = cdmpp.rank_schedules(parse_workload(task.workload), [p.module for p in programs], DEVICE, look=0)
    schedules = cdmpp.rank_schedules(
        parse_workload(task.workload)["main"], [tvm.s_tir.Schedule(p.module) for p in programs], DEVICE, look=0
    )
    assert sorted(traces.order) == list(range(12))
    assert traces.order == modules.order == schedules.order
    assert (np.diff(traces.latency_s[list(traces.order)]) >= 0).all()
    assert not traces.compiled.any() and not traces.reasons


def test_the_most_promising_are_compiled_and_come_first(programs):
    found = cdmpp.rank_schedules(tasks()["matmul"], [p.trace for p in programs], DEVICE, look=3)
    assert found.compiled.sum() == 3
    assert found.compiled[found.order[0]]


def test_what_cannot_be_read_has_a_reason(programs):
    broken = tvm.IRModule({})
    found = cdmpp.rank_schedules(tasks()["matmul"], [programs[0].module, broken], DEVICE, look=0)
    assert found.order == (0,) and np.isnan(found.latency_s[1]) and "PrimFuncs" in found.reasons[1]


def test_no_candidates_and_strange_ones_are_refused(programs):
    with pytest.raises(CdmppError, match="no candidate"):
        cdmpp.rank_schedules(tasks()["matmul"], [], DEVICE)
    with pytest.raises(CdmppError, match="str is no workload"):
        cdmpp.rank_schedules("matmul", [programs[0].module], DEVICE)
    with pytest.raises(CdmppError, match="int is no candidate"):
        cdmpp.rank_schedules(tasks()["matmul"], [3], DEVICE)
