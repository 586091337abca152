"""Jobs as the field records them: each has its right value, or is refused with the right reason."""

from __future__ import annotations

import json
from random import Random

import pytest

from cdmpp import cli
from cdmpp.errors import CdmppError, DataError
from cdmpp.steps.replay import replay
from cdmpp.trace.folder import TracedJob, read_traces, traced_job
from cdmpp.trace.graph_file import graph_from_dict, graph_to_dict
from cdmpp.trace.kineto import rank_trace
from cdmpp.trace.rank_trace import HOST
from cdmpp.trace.scanned import scan
from cdmpp.trace.traced_step import traced_steps
from cdmpp.trace.what_if import changed, doubts
from tests.trace import field_jobs as jobs

MS = 1e3


def read(folder, mark=None) -> TracedJob:
    return traced_job(folder, read_traces(folder, mark))


def work(job: TracedJob):
    return [op for op in job.graph.ranks[0].ops if op.stream != HOST]


@pytest.mark.parametrize(
    ("make", "step_ms", "kernels", "busy_ms"),
    [
        (jobs.one_step_host, 10, 4, 0.4),
        (jobs.prefetch_stream, 10, 11, 10),
        (jobs.copy_beside, 10, 11, 9.991),
        (jobs.two_streams, 10, 15, 10),
        (jobs.kernels_lost, 8, 8, 8),
        (jobs.kernels_lost_one_step, 8, 8, 8),
        (jobs.leftover, 5, 5, 5),
        (jobs.other_accelerator, 10, 9, 9),
        (jobs.nccl_sizes_on_host, 10, 5, 5),
        (jobs.nccl_generic, 10, 5, 5),
        (jobs.steps_differ, 20, 6, 19.602),
        (jobs.empty_mark, 5, 4, 4),
        (jobs.one_gpu, 5, 4, 4),
        (jobs.null_args, 5, 4, 4),
        (jobs.text_numbers, 5, 4, 4),
        (jobs.phases, 10, 8, 8),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_step_is_as_long_as_it_was(tmp_path, make, step_ms, kernels, busy_ms):
    job = read(make(tmp_path / "job"))
    base = replay(job.graph)
    assert MS * job.graph.measured.step_s == pytest.approx(step_ms)
    assert MS * base.step_s == pytest.approx(step_ms, rel=1e-3)
    assert MS * base.busy_s[0] == pytest.approx(busy_ms, rel=1e-3)
    assert len(work(job)) == kernels
    for step in traced_steps(job):
        assert step.replayed_s == pytest.approx(step.measured_s, rel=1e-3)
    for trace in job.traces:
        for row in (*trace.inventory.categories, trace.inventory.device):
            assert row.events == row.kept + row.left_over + row.lost and min(row.kept, row.left_over, row.lost) >= 0


def test_streams_run_beside_each_other(tmp_path):
    beside, two = read(jobs.copy_beside(tmp_path / "a")).graph, read(jobs.two_streams(tmp_path / "b")).graph
    assert MS * replay(changed(beside, {"kernel:mix": "0.5"})).step_s == pytest.approx(8, rel=0.01)
    assert MS * replay(changed(two, {"kernel:beta": "0.5"})).step_s == pytest.approx(10, rel=1e-3)
    assert MS * replay(changed(two, {"kernel:alpha": "0.5"})).step_s == pytest.approx(10, rel=0.06)
    assert sum(op.duration_s for op in two.ranks[0].ops) * MS == pytest.approx(10 + 5 * 1.9)


def test_a_copy_of_the_next_batch_makes_no_gap(tmp_path):
    job = read(jobs.prefetch_stream(tmp_path))
    base = replay(job.graph)
    assert base.rank_step_s(0) - base.busy_s[0] - base.waits_s[0] == pytest.approx(0, abs=1e-9)


def test_what_was_launched_before_is_of_no_step(tmp_path):
    job = read(jobs.leftover(tmp_path))
    (trace,) = job.traces
    assert (trace.inventory.device.kept, trace.inventory.device.left_over, trace.inventory.device.lost) == (5, 3, 0)
    assert not any(op.name.startswith("old") for op in work(job))
    assert any("3 of 8 device events are of no step" in text for text in job.warnings)


def test_the_host_says_what_a_collective_is(tmp_path):
    for make in (jobs.nccl_sizes_on_host, jobs.nccl_generic):
        job = read(make(tmp_path / make.__name__))
        assert [(one.kind, one.bytes) for one in job.graph.exchanges] == [
            ("all_to_all", 4_000_000), ("all_reduce", 8_000_000)
        ]  # fmt: skip
        for trace in job.traces:
            said = {one.kind: (one.count, one.known, one.bytes) for one in trace.inventory.collectives}
            assert said == {"all_to_all": (3, 3, 12_000_000), "all_reduce": (3, 3, 24_000_000)}


def test_unknown_bytes_are_no_bytes(tmp_path):
    trace = jobs.Trace()
    jobs.steps_of(trace)
    for number in range(3):
        trace.device("ncclKernel_AllReduce_RING_LL_Sum_float(args)", 5000 * number + 190, 5000 * number + 4310, 600, 20)
    job = read(trace.save(tmp_path))
    assert [one.bytes for one in job.graph.exchanges] == [0]
    with pytest.raises(CdmppError, match="does not say how many bytes"):
        changed(job.graph, {"bandwidth": "0.5"})
    assert doubts(job.graph, {"kernel:mix": "0.5"}) == []


def test_steps_that_differ_are_all_listed(tmp_path):
    job = read(jobs.steps_differ(tmp_path))
    assert any("steps differ" in text and "0: 10, 1: 20" in text for text in job.warnings)
    assert [round(MS * step.measured_s) for step in traced_steps(job)] == [10, 20, 20, 20, 20]


def test_a_step_without_work_is_left_out(tmp_path):
    job = read(jobs.empty_mark(tmp_path))
    assert len(job.graph.measured.steps_s) == 3
    assert any("step 3 (it has no work of a device)" in text for text in job.warnings)


def test_one_gpu_is_rank_0_of_1(tmp_path):
    job = read(jobs.one_gpu(tmp_path))
    assert job.numbers == (0,) and job.traces[0].world_size == 1


def test_odd_numbers_are_counted(tmp_path):
    text = read(jobs.text_numbers(tmp_path / "text"))
    assert any("3 events have numbers written as text" in one for one in text.warnings)
    null = read(jobs.null_args(tmp_path / "null"))
    assert any("3 device events have no launch" in one for one in null.warnings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (jobs.negative, r"no step is whole: step 0: kernel 'mix_2' has a length of -1000 us"),
        (jobs.gpu_lost_all, r"12 launches and no event of a device"),
    ],
)
def test_what_cannot_be_answered_is_refused(tmp_path, make, message, capsys):
    folder = make(tmp_path / "job")
    with pytest.raises(DataError, match=message):
        read(folder)
    assert cli.main(["trace", str(folder)]) == 2
    assert cli.main(["trace", str(folder), "--check"]) == 0
    assert "12" in capsys.readouterr().out


def test_one_broken_step_of_three(tmp_path):
    trace = jobs.steps_of(jobs.Trace())
    next(event for event in trace.events if event["name"] == "mix_2")["dur"] = None
    job = read(trace.save(tmp_path))
    assert len(job.graph.measured.steps_s) == 2 and job.traces[0].inventory.device.lost == 4
    assert any("step 0 (kernel 'mix_2' has a length of None" in text for text in job.warnings)


@pytest.mark.parametrize(
    "runtime", ["cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "privateuse1_runtime"]
)
def test_phases_come_from_launches_of_any_runtime(tmp_path, runtime):
    job = read(jobs.phases(tmp_path, runtime))
    named = [(op.name[:3], op.phase) for op in work(job)]
    assert named == [("fwd", "forward")] * 4 + [("bwd", "backward")] * 4


def test_missing_ranks_are_a_warning(tmp_path, capsys):
    trace = jobs.steps_of(jobs.Trace(34, 300))
    job = read(trace.save(tmp_path))
    assert job.numbers == (34,) and len(job.graph.ranks) == 1
    assert any("rank 0-33, 35-299 of 300 are missing" in text for text in job.warnings)
    assert cli.main(["trace", str(tmp_path), "--what-if", "ranks=4"]) == 2
    assert "traces of some ranks are missing" in capsys.readouterr().err
    assert cli.main(["trace", str(tmp_path), "--what-if", "straggler=no"]) == 2
    assert "--what-if straggler: traces of some ranks are missing" in capsys.readouterr().err


def test_graph_launches_are_steps(tmp_path):
    """One launch for all kernels of a step, as an inference server replays a captured graph."""
    trace = jobs.Trace()
    for number in range(4):
        begin = 3000 * number
        trace.span("cuda_runtime", "cudaGraphLaunch", begin, 50, correlation=number + 1)
        for i in range(20):
            ids = {"correlation": number + 1, "device": 0, "stream": 7}
            trace.span("kernel", f"k{i}", begin + 60 + 100 * i, 100, tid=7, pid=0, **ids)
    job = read(trace.save(tmp_path / "graphs"))
    assert job.traces[0].inventory.steps_by == "graph launches"
    assert MS * job.graph.measured.step_s == pytest.approx(3) and len(work(job)) == 20
    for number in range(4):
        trace.span("user_annotation", f"execute_model_{number}", 3000 * number - 10, 100)
    marked = read(trace.save(tmp_path / "marked"), "execute_model")
    assert MS * marked.graph.measured.step_s == pytest.approx(3)
    with pytest.raises(DataError, match=r"no host event with 'nothing'.* execute_model_0"):
        read(tmp_path / "marked", "nothing")


def test_the_rest_of_a_capture_is_no_loss(tmp_path):
    trace = jobs.steps_of(jobs.Trace(), count=1)
    trace.span("cuda_runtime", "cudaStreamBeginCapture", 4400, 1)
    for i in range(10):
        trace.span("cuda_runtime", "cudaLaunchKernel", 4410 + 10 * i, 5, correlation=5000 + i)
    trace.span("cuda_runtime", "cudaStreamEndCapture", 4600, 1)
    assert MS * read(trace.save(tmp_path)).graph.measured.step_s == pytest.approx(5)


def test_a_recorded_wait_holds_another_stream(tmp_path):
    """A copy on stream 22 waits for a kernel on stream 7: with kernels half as long it starts earlier."""
    trace = jobs.Trace()
    for number in range(3):
        h, base = 10000 * number, 1000 * (number + 1)
        trace.mark(number, h, 10000)
        for i in range(4):
            trace.device(f"mix_{i}", h + 10 + 5 * i, h + 100 + 1000 * i, 1000)
        trace.span("cuda_runtime", "cudaEventRecord", h + 40, 1, correlation=base)
        trace.span("cuda_runtime", "cudaStreamWaitEvent", h + 42, 1, correlation=base + 1)
        told = {"stream": 22, "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": base, "correlation": base + 1}
        trace.span("cuda_sync", "Stream Wait Event", h + 42, 1, tid=22, pid=0, **told)
        trace.device("Memcpy", h + 50, h + 4200, 5000, stream=22, cat="gpu_memcpy")
    job = read(trace.save(tmp_path))
    assert MS * replay(changed(job.graph, {"kernel:mix": "0.5"})).step_s == pytest.approx(8, rel=1e-3)


def test_a_host_that_waits_for_its_device(tmp_path):
    """Each launch follows a synchronisation: kernels half as long save the host's waiting too, and no more."""
    trace = jobs.Trace()
    for number in range(3):
        h = 10000 * number
        trace.mark(number, h, 10000)
        for i in range(4):
            trace.device(f"mix_{i}", h + 100 + 2400 * i, h + 110 + 2400 * i, 2000)
            trace.span("cuda_runtime", "cudaDeviceSynchronize", h + 105 + 2400 * i, 2010)
    job = read(trace.save(tmp_path))
    assert MS * replay(changed(job.graph, {"kernel:mix": "0.5"})).step_s == pytest.approx(6, rel=1e-3)


def test_a_host_that_is_slower_than_its_device(tmp_path):
    trace = jobs.Trace()
    for number in range(3):
        h = 10000 * number
        trace.mark(number, h, 10000)
        for i in range(10):
            trace.device(f"mix_{i}", h + 990 * i, h + 10 + 990 * i, 500)
    job = read(trace.save(tmp_path))
    assert MS * replay(changed(job.graph, {"kernel:mix": "0.5"})).step_s == pytest.approx(10 - 0.25, rel=0.03)


@pytest.mark.parametrize("given", ["ranks=2.5", "bandwidth=1e-300", "kernel:mix=1e-300"])
def test_factors_that_cannot_be_are_refused(tmp_path, given, capsys):
    folder = jobs.nccl_generic(tmp_path / "job")
    assert cli.main(["trace", str(folder), "--what-if", given]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_ranks_whose_partners_have_no_trace(tmp_path):
    """Two of eight ranks, which exchange different things with ranks that are not there."""
    for rank, count in ((0, 1), (3, 2)):
        trace = jobs.steps_of(jobs.Trace(rank, 8))
        for number in range(3):
            for i in range(count):
                begin = 5000 * number + 1000 * i
                trace.device("ncclDevKernel_AllGather_RING_LL(args)", begin + 150, begin + 400, 300, 20)
        trace.save(tmp_path)
    job = read(tmp_path)
    assert job.numbers == (0, 3) and sorted(one.ranks for one in job.graph.exchanges) == [(0, 1), (1,)]
    assert MS * replay(job.graph).step_s == pytest.approx(5, rel=0.03)


def test_streams_survive_their_file(tmp_path):
    """Streams, what they wait for, and a collective that only the end of the step waits for."""
    trace = jobs.steps_of(jobs.Trace())
    for number in range(3):
        h = 5000 * number
        trace.device("Memcpy HtoD", h + 120, h + 400, 500, stream=22, cat="gpu_memcpy")
        trace.device("ncclDevKernel_ReduceScatter_Sum_f32(args)", h + 195, h + 4310, 600, 20)
    graph = read(trace.save(tmp_path)).graph
    assert graph.exchanges[0].before == {0: (len(graph.ranks[0].ops),)}
    again = graph_from_dict(graph_to_dict(graph))
    assert again.exchanges[0].before == graph.exchanges[0].before
    assert [(op.stream, op.waits) for op in again.ranks[0].ops] == [(op.stream, op.waits) for op in graph.ranks[0].ops]
    assert replay(again).step_s == pytest.approx(replay(graph).step_s, rel=1e-6)


def test_exchanges_that_do_not_match_are_said(tmp_path):
    """All ranks are there, but one lacks a collective that the other has: an answer with a doubt on top."""
    for rank in range(2):
        trace = jobs.steps_of(jobs.Trace(rank, 2))
        for number in range(3):
            for i in range(1 + rank):
                begin = 5000 * number + 1000 * i
                trace.device("ncclDevKernel_AllReduce_Sum_f32(args)", begin + 150, begin + 400, 300, 20)
        trace.save(tmp_path)
    job = read(tmp_path)
    assert any("exchanges of the ranks do not match" in text for text in job.warnings)
    assert MS * replay(job.graph).step_s == pytest.approx(5, rel=0.03)


ODD = (
    None,
    "",
    "x",
    [],
    {},
    True,
    -1,
    0,
    1e300,
    10**400,
    float("nan"),
    float("inf"),
    [1],
    {"a": 1},
    "5",
    -(10**30),
    2**70,
)


@pytest.mark.parametrize("seed", range(30))
def test_every_event_is_counted_whatever_it_holds(tmp_path, seed):
    """Odd values anywhere: an answer or a refusal, and kept + left over + lost = spans in either case."""
    random = Random(seed)
    jobs.nccl_generic(tmp_path)
    for file in sorted(tmp_path.iterdir()):
        whole = json.loads(file.read_text())
        for event in random.sample(whole["traceEvents"], 12):
            target = event if random.random() < 0.6 or not event["args"] else event["args"]
            target[random.choice(list(target))] = random.choice(ODD)
        file.write_text(json.dumps(whole))
        spans = sum(event.get("ph") == "X" for event in whole["traceEvents"])
        trace = rank_trace(scan(file))
        rows = trace.inventory.categories
        assert sum(row.events for row in rows) == spans
        assert all(row.events == row.kept + row.left_over + row.lost for row in rows)
        assert all(min(row.kept, row.left_over, row.lost) >= 0 for row in rows)
    try:
        job = read(tmp_path)
    except DataError:
        return
    assert replay(job.graph).step_s > 0


def test_a_kernel_with_a_copy_in_its_name_computes(tmp_path):
    trace = jobs.Trace()
    trace.mark(0, 0, 10000)
    for place, (name, cat) in enumerate(
        (("combined_routing_memset", None), ("Memset (Device)", "gpu_memset"), ("ncclDevKernel_Generic(args)", None))
    ):
        trace.device(name, 10 + place, 100 + 2000 * place, 1000, cat=cat)
    found = rank_trace(scan(trace.save(tmp_path) / "rank0.json")).inventory.breakdown
    assert [MS * value for value in (found.compute_s, found.exposed_s, found.idle_s)] == pytest.approx([1, 2, 2])


def test_an_answer_says_that_bytes_are_unknown(tmp_path, capsys):
    trace = jobs.steps_of(jobs.Trace())
    for number in range(3):
        trace.device("ncclKernel_AllReduce_RING_LL_Sum_float(args)", 5000 * number + 190, 5000 * number + 4310, 600, 20)
    folder = str(trace.save(tmp_path / "job"))
    assert cli.main(["trace", folder, "--diagnose"]) == 0
    out = capsys.readouterr().out
    assert "moved unknown" in out and "1 of them of unknown bytes" in out and "larger buckets" not in out
    assert cli.main(["trace", folder, "--json"]) == 0
    assert [one["bytes"] for one in json.loads(capsys.readouterr().out)["exchanges"]] == [None]
