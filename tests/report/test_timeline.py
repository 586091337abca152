"""Timelines: rows and processes in their order, and short spans that are merged so that a page stays small."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.plans.strategies.parameter_server import ParameterServer
from cdmpp.report.charts import timeline_picture
from cdmpp.report.html import html_page
from cdmpp.report.network import network_report
from cdmpp.report.replay import replay_report
from cdmpp.report.timeline import MOST, TimelineSpan, by_row, chrome_trace, merge_short_spans, spans_of
from cdmpp.simulate import Task, simulate
from cdmpp.steps.strategy_replay import replay_strategy
from tests.network.example_prediction import GAP_S, example, kernels
from tests.steps.toy_graph import ranks_of, wires


def test_a_row_for_each_resource_and_microseconds():
    timeline = simulate([Task("a", 1e-3, ("matrix",), label="matmul"), Task("b", 2e-3, ("vector",), ("a",))])
    events = chrome_trace(spans_of(timeline))["traceEvents"]
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == ["matrix", "vector"]
    b = next(e for e in events if e["name"] == "b")
    assert (b["ts"], b["dur"], b["tid"], b["cat"], b["args"]) == (1000.0, 2000.0, 1, "task", {"critical": True})


def test_what_nothing_waited_for_is_not_critical():
    tasks = [Task("a", 1e-3, ("matrix",)), Task("b", 2e-3, ("vector",), ("a",)), Task("c", 5e-4, ("scalar",))]
    assert {one.name: one.is_critical for one in spans_of(simulate(tasks))} == {"a": True, "b": True, "c": False}


def test_a_process_for_each_rank():
    found = replay_strategy(ranks_of(2), ParameterServer(servers=1), wires(2))
    events = chrome_trace(replay_report(found).timeline or ())["traceEvents"]
    names = {(event["pid"], event["args"]["name"]) for event in events if event["name"] == "thread_name"}
    assert names == {
        *((rank, "compute") for rank in (0, 1)), (0, "server"), (1, "to 0"), (0, "from 1"), (0, "to 1"), (1, "from 0"),
    }  # fmt: skip
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["rank 0", "rank 1"]
    ran = [event for event in events if event["ph"] == "X"]
    assert min(event["ts"] for event in ran) == 0
    assert {event["cat"] for event in ran} == {"start", "forward", "backward", "update", "push", "sum", "pull"}
    for pid, tid in {(event["pid"], event["tid"]) for event in ran}:
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in ran if (e["pid"], e["tid"]) == (pid, tid))
        assert all(a[1] <= b[0] + 1e-6 for a, b in zip(own, own[1:], strict=False))


def test_rank_10_comes_after_rank_9_and_computing_first():
    spans = [
        TimelineSpan(row, "x", "", 0.0, 1.0, process=f"rank {rank}") for rank in (10, 9) for row in ("a", "compute")
    ]
    assert list(by_row(spans)) == ["rank 9 compute", "rank 9 a", "rank 10 compute", "rank 10 a"]
    named = [e["args"]["name"] for e in chrome_trace(spans)["traceEvents"] if e["name"] == "process_name"]
    assert named == ["rank 9", "rank 10"]


def test_few_calls_are_drawn_one_by_one():
    rows = by_row(spans_of(example().timeline))
    merged = merge_short_spans(rows, 1.0)
    assert [one.count for one in merged] == [1] * 62
    assert merged[1].start_s - merged[0].end_s == pytest.approx(GAP_S)


def test_many_calls_and_kernels_give_a_small_page():
    base = kernels()
    many = [replace(base[i % 21], name=f"fused_kernel_of_a_usual_name_{i}", task_id=str(i)) for i in range(3000)]
    prediction = example([replace(kernel, count=2) for kernel in many], engines=("a", "b"))
    rows = by_row(spans_of(prediction.timeline))
    merged = merge_short_spans(rows, prediction.latency_s)
    assert sum(one.count for one in merged) == 6000 and len(merged) < 2 * MOST + 4
    for resource in ("a", "b"):
        row = [one for one in merged if one.row == resource]
        assert all(a.end_s <= b.start_s + 1e-15 for a, b in zip(row, row[1:], strict=False))
    page = html_page([network_report(prediction)])
    assert len(page.encode()) < 3e6
    assert "short calls are drawn together" in page and "The first 1000 of 3000" in page


def test_a_picture_begins_with_the_first_span():
    spans = [TimelineSpan("r", "early", "k", -2.0, 0.0), TimelineSpan("r", "late", "k", 0.0, 2.0)]
    picture, merged = timeline_picture(spans)
    boxes = [(shape.attributes["x"], shape.attributes["width"]) for shape in picture.shapes if shape.label]
    assert boxes == [("0.000%", "50.000%"), ("50.000%", "50.000%")] and merged == 0
    assert timeline_picture([])[1] == 0
