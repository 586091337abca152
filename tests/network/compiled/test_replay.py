"""A network's calls on engines and streams: every makespan is worked out by hand."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.devices.launch_overheads import LaunchOverheads
from cdmpp.network.compiled.replay import START, by_task, overhead_seconds, replay
from tests.network.graphs import call, graph_of_calls, task

DIAMOND = (call(0), call(1, 0), call(2, 0), call(3, 1, 2))
SECONDS = [1.0, 2.0, 4.0, 8.0]


def test_one_stream_runs_all_in_the_order_of_the_program():
    timeline = replay(graph_of_calls(*DIAMOND), SECONDS, LaunchOverheads())
    assert timeline.makespan_s == 15.0 and overhead_seconds(timeline) == 0.0
    assert [name for name in timeline.spans if name != START] == [one.name for one in DIAMOND]


def test_a_gap_lies_before_every_kernel_and_a_run_costs_once():
    timeline = replay(graph_of_calls(*DIAMOND), SECONDS, LaunchOverheads(call_s=0.5, run_s=3.0))
    assert timeline.makespan_s == pytest.approx(15.0 + 4 * 0.5 + 3.0)
    assert overhead_seconds(timeline) == pytest.approx(5.0)


def test_branches_overlap_on_two_streams():
    timeline = replay(graph_of_calls(*DIAMOND), SECONDS, LaunchOverheads(streams=2))
    assert timeline.makespan_s == 1.0 + 4.0 + 8.0


def test_op_classes_run_on_engines_of_their_own():
    tasks = {"conv": task("conv", "conv2d"), "add": task("add", "elementwise")}
    graph = graph_of_calls(
        call(0, key="conv"), call(1, 0, key="add"), call(2, 0, key="conv"), call(3, 1, 2, key="add"), tasks=tasks
    )
    overheads = LaunchOverheads(classes={"matrix": ("conv2d", "dense"), "vector": ("elementwise",)})
    timeline = replay(graph, SECONDS, overheads)
    assert timeline.makespan_s == 1.0 + 4.0 + 8.0, "the addition hides behind the second convolution"
    assert timeline.busy_s == {"matrix": 5.0, "vector": 10.0}
    assert overheads.engine_of("softmax") == "vector", "what no engine names runs on the last"


def test_means_over_the_calls_of_a_task():
    graph = graph_of_calls(call(0), call(1, 0, key="u"), call(2, 1))
    assert by_task(graph, [1.0, 5.0, 3.0]) == {"t": 2.0, "u": 5.0}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_with_a_stream_a_call_the_longest_path_decides(data):
    n = data.draw(st.integers(1, 12))
    calls = [call(i, *data.draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else ()) for i in range(n)]
    seconds = data.draw(st.lists(st.integers(1, 9).map(float), min_size=n, max_size=n))
    timeline = replay(graph_of_calls(*calls), seconds, LaunchOverheads(streams=n))
    paths = nx.DiGraph()
    paths.add_nodes_from(range(n + 1))
    for place, one in enumerate(calls):
        paths.add_edges_from((source, place, {"weight": seconds[source]}) for source in one.inputs)
        paths.add_edge(place, n, weight=seconds[place])
    assert timeline.makespan_s == pytest.approx(nx.dag_longest_path_length(paths))
