"""Kineto's files become ops, exchanges and gradients, of CPUs and GPUs; what is none is refused."""

from __future__ import annotations

import json
import re

import pytest

from cdmpp.errors import DataError
from cdmpp.steps.replay import replay
from cdmpp.trace import event_file
from cdmpp.trace.diagnosis import short
from cdmpp.trace.event_file import EventFile
from cdmpp.trace.folder import read_job, read_traces
from cdmpp.trace.kineto import read_kineto
from cdmpp.trace.rank_trace import HOST
from tests.trace.small_traces import ITEMS, cpu_step, event, gpu_step, write, write_job


def test_a_step_on_a_cpu(tmp_path):
    trace = read_kineto(write(tmp_path, 1, cpu_step(3), packed=True))
    assert (trace.rank, trace.world_size, trace.backend) == (1, 2, "gloo")
    (step,) = trace.steps
    names = [op.name.rpartition("::")[2] for op in step.ops]
    assert names == [
        "linear", "evaluate_function: AddmmBackward0", "AccumulateGrad", "mul_out", "allreduce_",
        "evaluate_function: AddmmBackward0", "AccumulateGrad", "mul_out", "allreduce_",
        "copy_bucket_to_grad", "copy_bucket_to_grad", "add_",
    ]  # fmt: skip
    assert [op.phase for op in step.ops] == ["forward", *["backward"] * 8, *["update"] * 3]
    assert [(e.kind, e.bytes, e.after, e.waited_by) for e in step.exchanges] == [
        ("all_reduce", 4 * ITEMS, 4, 9), ("all_reduce", 4 * ITEMS, 8, 10)
    ]  # fmt: skip
    assert [(g.bytes, g.after) for g in step.gradients] == [(4 * ITEMS, 3), (4 * ITEMS, 7)]
    launch = step.ops[4]
    assert 1e6 * launch.end_s == pytest.approx(3210)  # cut where gloo's thread took over
    assert step.ops[0].events == 2


def test_a_step_on_a_gpu(tmp_path):
    events = [e for number in (3, 4) for e in gpu_step(number)]
    trace = read_kineto(write(tmp_path, 0, events, backend="nccl"))
    first, second = trace.steps
    assert [(op.name, op.phase) for op in first.ops if op.stream != HOST] == [
        ("gemm", "forward"), ("gemm_grad", "backward"), ("sgd", "update")
    ]  # fmt: skip
    (exchange,) = first.exchanges
    assert (exchange.kind, exchange.bytes, first.ops[exchange.after].name) == ("all_reduce", 4 * ITEMS, "gemm_grad")
    assert exchange.group == "0[0, 1]"
    assert [(g.bytes, first.ops[g.after].name) for g in first.gradients] == [(4 * ITEMS, "gemm_grad")]
    assert first.end_s - first.start_s == pytest.approx(1e-3)
    assert second.end_s - second.start_s == pytest.approx(9e-4)  # the last mark


def test_gaps_of_a_gpu_lose_what_the_profiler_adds(tmp_path):
    """A step of 1000 us, 750 of gaps; the same took 700 us without the profiler."""
    plain = read_job(write_job(tmp_path / "plain", late=0.0, step=gpu_step, backend="nccl"))
    told = write_job(tmp_path / "told", late=0.0, step=gpu_step, backend="nccl")
    steps_s = [7e-4] * 6 + [1e-3] * 4 + [7e-4] * 6
    for rank in (0, 1):
        recording = {"steps_s": steps_s, "profiled": [6, 10], "event_s": 1e-6}
        (told / f"rank{rank}.steps.json").write_text(json.dumps(recording))
    found = read_job(told)
    assert found.measured.unprofiled_s == pytest.approx(7e-4)
    for rank, before in zip(found.ranks, plain.ranks, strict=True):
        assert rank.busy_s == before.busy_s and rank.tail_s < before.tail_s
    assert replay(found).step_s == pytest.approx(replay(plain).step_s - 3e-4, rel=0.05)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("aten::addmm", "aten::addmm"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
        ("sm80_xmma_gemm_f32f32_tn_n", "sm80_xmma_gemm_f32f32_tn_n"),
        ("void at::(anonymous namespace)::multi_apply<at::X<1> >(at::X<1>)", "multi_apply"),
        ("void at::native::elementwise_kernel<128, 2, at::A(int)#1>(int)", "elementwise_kernel"),
    ],
)  # fmt: skip
def test_kernels_are_named_as_people_do(name, said):
    assert short(name) == said


def test_a_message_names_both_sides(tmp_path):
    events = [
        event("ProfilerStep#3", 0, 100, cat="user_annotation"),
        event("c10d::send", 10, 20, **{"Concrete Inputs": ["", "", "0", "0"]}),
        event("gloo:send", 19, 50, **{"Input Dims": [[8]], "Input type": ["float"]}),
    ]
    (step,) = read_kineto(write(tmp_path, 2, events, world=3)).steps
    (one,) = step.exchanges
    assert (one.kind, one.group, one.bytes) == ("send_recv", "2->0", 32)
    assert 1e6 * one.start_s == pytest.approx(10)  # its span is opened late


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ([], "has no steps"),
        (3, "cannot read"),
        ({"traceEvents": 3}, "no traceEvents"),
        ({"traceEvents": []}, "has no steps"),
        ({"traceEvents": [], "distributedInfo": {"rank": "x"}}, "no rank that is a number"),
        ([1, 2], "none of its 2 events is a JSON object"),
        ({"traceEvents": [], "distributedInfo": [1]}, r"distributedInfo is \[1\]: expected an object"),
        ({"traceEvents": [], "distributedInfo": {"rank": 1.5}}, "no rank that is a number"),
        ({"traceEvents": [], "distributedInfo": {"rank": 0, "world_size": 2.5}}, "a world_size that is none"),
        ({"traceEvents": [], "distributedInfo": {"rank": 0, "world_size": True}}, "a world_size that is none"),
        ({"traceEvents": [1, {"ph": "X"}, {"ph": "X", "name": 4, "ts": 1, "dur": 1}, {"ph": "X", "name": "a",
          "ts": "soon", "dur": 1}], "distributedInfo": {"rank": 0}}, "has no steps"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused(tmp_path, told, message):
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(told))
    with pytest.raises(DataError, match=message):
        read_kineto(file)


def test_broken_files_are_refused(tmp_path):
    for content in (b"\x1f\x8b broken", b"{", b"\xff\xfe"):
        file = tmp_path / "trace.json.gz"
        file.write_bytes(content)
        with pytest.raises(DataError, match="cannot read"):
            read_kineto(file)


def test_a_gpu_step_without_kernels_is_left_out(tmp_path):
    events = [*gpu_step(3), event("ProfilerStep#4", 1e6, 1e6 + 900, cat="user_annotation")]
    trace = read_kineto(write(tmp_path, 0, events, backend="nccl"))
    assert [step.number for step in trace.steps] == [3]
    assert "step 4 (it has no work of a device)" in " ".join(trace.inventory.warnings)


@pytest.mark.parametrize("size", [1, 100, 10**6])
def test_events_are_the_same_in_pieces_of_any_size(tmp_path, monkeypatch, size):
    """Nested objects, strings that look like events, keys after the list, an event that is no JSON."""
    monkeypatch.setattr(event_file, "_PIECE", size)
    one = '{"ph": "X", "name": "a},{\\"b", "args": {"list": [{"x": 1}, {"y": 2}]}}'
    file = tmp_path / "trace.json"
    file.write_text('{"a": {"traceEvents": 1}, "traceEvents": [\n' + ",\n".join([one] * 50) + '], "rank": [1, 2]}')
    read = EventFile(file)
    events = [event for batch in read.batches() for event in batch]
    assert events == [json.loads(one)] * 50 and read.keys == {"a": {"traceEvents": 1}, "rank": [1, 2]}
    file.write_text('[{"ph": "X", "ts": NaN},\n {"ph": oops},\n {"ph": "M"}]')
    first, broken, last = [event for batch in EventFile(file).batches() for event in batch]
    assert first["ph"] == "X" and broken is None and last == {"ph": "M"}
    file.write_bytes(b'[{"ph": "X", "name": "\xff"},\n {"ph": "M"}]')
    assert [event for batch in EventFile(file).batches() for event in batch] == [None, {"ph": "M"}]
    file.write_text('{"traceEvents": [{"ph": "M", "ts": NaN}], "a": oops}')
    with pytest.raises(DataError, match="what follows its events is no JSON"):
        list(EventFile(file).batches())
    file.write_text('{"traceEvents": [' + one + ", " + one[:20])
    with pytest.raises(DataError, match="it ends early"):
        list(EventFile(file).batches())


@pytest.mark.parametrize(("given", "told"), [("abc", "'abc'"), (104.5, "104.5"), ([1], r"\[1\]"), (True, "True")])
def test_a_correlation_is_a_whole_number(tmp_path, given, told):
    """As text of one it is read; anything else is a broken event, named, and its step is not whole."""
    events = [*gpu_step(3), *gpu_step(4)]
    kernel = next(one for one in gpu_step(4) if one["cat"] == "kernel")
    place = events.index(kernel)
    events[place] = {**kernel, "args": {**kernel["args"], "correlation": str(kernel["args"]["correlation"])}}
    assert [step.number for step in read_kineto(write(tmp_path, 0, events, backend="nccl")).steps] == [3, 4]
    events[place] = {**kernel, "args": {**kernel["args"], "correlation": given}}
    trace = read_kineto(write(tmp_path, 0, events, backend="nccl"))
    assert [step.number for step in trace.steps] == [3]
    assert re.search(
        f"1 broken events are lost: kernel .* has the correlation {told}", " ".join(trace.inventory.warnings)
    )


def test_two_files_of_a_rank_are_told_what_they_lack(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"traceEvents": gpu_step(3)}))
    with pytest.raises(DataError, match="two traces are of rank 0: .*no distributedInfo with rank and world_size"):
        read_traces(tmp_path)
