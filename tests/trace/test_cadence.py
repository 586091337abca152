"""Steps that nothing marks: cut where all kernels, or the graphs of a group, repeat."""

from __future__ import annotations

import pytest

from cdmpp.steps.replay import replay
from cdmpp.trace.folder import TracedJob, read_traces, traced_job
from cdmpp.trace.rank_trace import HOST
from tests.trace.field_jobs import Trace

MS = 1e3


def read(folder) -> TracedJob:
    return traced_job(folder, read_traces(folder))


def work(job: TracedJob) -> list[str]:
    return [op.name for op in job.graph.ranks[0].ops if op.stream != HOST]


def kernels(trace: Trace, names, begin=0.0, pause=1000.0) -> float:
    """Kernels of 1 ms each that are launched 90 us before they begin; a pause before each ``mix_0``."""
    for name in names:
        begin += pause if name == "mix_0" else 0.0
        trace.device(name, begin + 10, begin + 100, 1000)
        begin += 1000
    return begin


STEP = [f"mix_{i}" for i in range(4)]


def test_kernels_that_repeat_are_steps(tmp_path):
    trace = Trace()
    kernels(trace, STEP * 4)
    for number in range(4):
        trace.device("Memcpy HtoD", 5000 * number + 1020, 5000 * number + 1100, 300, stream=22, cat="gpu_memcpy")
    job = read(trace.save(tmp_path))
    assert job.traces[0].inventory.steps_by == "cadence: 4 repeats"
    assert any("they are cut where all kernels repeat (cadence: 4 repeats)" in text for text in job.warnings)
    assert len(job.steps) == 4 and sorted(work(job)) == ["Memcpy HtoD", *STEP]
    assert MS * job.graph.measured.step_s == pytest.approx(5)
    assert MS * replay(job.graph).step_s == pytest.approx(5, rel=1e-3)


def test_a_host_that_is_steps_ahead(tmp_path):
    """All is launched within a millisecond: a step lasts as long as its kernels."""
    trace = Trace()
    for place, name in enumerate(STEP * 5):
        trace.device(name, 20 * place, 1000 + 1000 * place, 1000)
    job = read(trace.save(tmp_path, told=False))
    assert job.traces[0].inventory.steps_by == "cadence: 5 repeats" and work(job) == STEP
    assert MS * job.graph.measured.step_s == pytest.approx(4)


def test_parts_of_a_step_at_both_ends_are_left_over(tmp_path):
    trace = Trace()
    kernels(trace, [*STEP[2:], *STEP * 3, STEP[0]])
    job = read(trace.save(tmp_path))
    assert job.traces[0].inventory.steps_by == "cadence: 3 repeats" and work(job) == STEP
    device = job.traces[0].inventory.device
    assert (device.kept, device.left_over, device.lost) == (12, 3, 0)
    assert MS * job.graph.measured.step_s == pytest.approx(5)


@pytest.mark.parametrize(
    "names",
    [
        ["embed", *["attention", "mlp", "norm"] * 12, "head"],
        ["embed", *["attention", "mlp", "norm"] * 12],
        STEP * 2,
        ["mix"] * 20,
    ],
    ids=["layers", "layers without a head", "twice", "one kernel"],
)
def test_what_is_no_cadence_is_one_step(tmp_path, names):
    trace = Trace()
    kernels(trace, names)
    job = read(trace.save(tmp_path))
    assert job.traces[0].inventory.steps_by == "" and work(job) == names


def test_graphs_that_repeat_as_a_group_are_steps(tmp_path):
    """A server replays pieces of a model: 5, 20, 20, 20 and 8 kernels, with attention between them."""
    trace, at = Trace(), 0.0
    for number in range(4):
        at = 9000.0 * number
        for piece, size in enumerate((5, 20, 20, 20, 8)):
            trace.count += 1
            trace.span("cuda_runtime", "cudaGraphLaunch", at, 20, correlation=trace.count)
            for place in range(size):
                ids = {"correlation": trace.count, "device": 0, "stream": 7}
                trace.span("kernel", f"k{piece}_{place}", at + 60 + 100 * place, 100, tid=7, pid=0, **ids)
            at += 100 * size + 60
            trace.device("attention", at + 5, at + 10, 100)
            at += 120
    job = read(trace.save(tmp_path))
    assert job.traces[0].inventory.steps_by == "graph launches, 5 a step"
    assert len(job.steps) == 4 and len(work(job)) == 5 + 20 + 20 + 20 + 8 + 5
    assert MS * job.graph.measured.step_s == pytest.approx(9)
    assert MS * replay(job.graph).step_s == pytest.approx(9, rel=1e-3)
