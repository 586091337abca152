"""The replay engine: order, resources, causes, and networkx as oracle of the longest path."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from cdmpp.errors import DataError
from cdmpp.simulate import Task, simulate


def random_graph(seed: int, n: int = 60) -> list[Task]:
    random = np.random.default_rng(seed)
    tasks = []
    for i in range(n):
        after = tuple(f"t{j}" for j in random.permutation(i)[: random.integers(0, 4)])
        tasks.append(Task(f"t{i}", float(random.integers(1, 9)), (f"r{random.integers(3)}",), after))
    return tasks


def started(timeline) -> list[str]:
    return sorted(timeline.spans, key=lambda name: timeline.spans[name].start_s)


@pytest.mark.parametrize("seed", range(20))
def test_without_limits_it_takes_the_longest_path(seed):
    tasks = [Task(t.key, t.duration, (t.key,), t.after) for t in random_graph(seed)]
    graph = nx.DiGraph()
    for task in tasks:
        graph.add_node(task.key)
        graph.add_edges_from((name, task.key, {"weight": 0}) for name in task.after)
    for task in tasks:  # the time of a node on the edges out of it, and to an end
        for _, _, data in graph.out_edges(task.key, data=True):
            data["weight"] = task.duration
        graph.add_edge(task.key, "end", weight=task.duration)
    timeline = simulate(tasks)
    assert timeline.makespan_s == nx.dag_longest_path_length(graph)
    path = timeline.critical_path
    assert sum(span.end_s - span.start_s for span in path) == timeline.makespan_s
    assert path[0].start_s == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_resource_runs_one_task_at_a_time_and_inputs_come_first(seed):
    tasks = random_graph(seed)
    timeline = simulate(tasks)
    for resource in ("r0", "r1", "r2"):
        spans = sorted((s for s in timeline.spans.values() if resource in s.task.resources), key=lambda s: s.start_s)
        assert all(a.end_s <= b.start_s for a, b in zip(spans, spans[1:], strict=False))
        assert timeline.busy_s[resource] + timeline.idle_s[resource] == pytest.approx(timeline.makespan_s)
    for span in timeline.spans.values():
        assert all(timeline.spans[name].end_s <= span.start_s for name in span.task.after)
        if span.cause is not None:  # what it waited for last ended just then
            assert timeline.spans[span.cause].end_s == span.start_s
    assert max(timeline.busy_s.values()) <= timeline.makespan_s <= sum(t.duration for t in tasks)
    assert {n: s.start_s for n, s in simulate(tasks).spans.items()} == {n: s.start_s for n, s in timeline.spans.items()}


def test_the_least_priority_then_the_longest_wait_then_the_first_given_goes_first():
    tasks = [
        Task("first", 5.0, ("engine",)),
        Task("late", 1.0, ("engine",), ("other",)),
        Task("other", 2.0),
        Task("waiting", 1.0, ("engine",)),
        Task("too", 1.0, ("engine",)),
        Task("urgent", 1.0, ("engine",), ("other",), priority=-1),
    ]
    order = [name for name in started(simulate(tasks)) if name != "other"]
    assert order == ["first", "urgent", "waiting", "too", "late"]


def test_what_ends_together_ends_before_anything_starts():
    tasks = [
        Task("a", 1.0, ("engine",)),
        Task("b", 1.0),
        Task("low", 1.0, ("engine",)),
        Task("high", 1.0, ("engine",), ("b",), priority=-1),
    ]
    assert started(simulate(tasks))[-2:] == ["high", "low"]


def test_a_gap_keeps_the_engine_but_not_the_successors():
    tasks = [
        Task("a", 1.0, ("engine",), gap_s=0.5),
        Task("b", 1.0, ("engine",)),
        Task("c", 1.0, ("other",), ("a",)),
    ]
    timeline = simulate(tasks)
    assert timeline.spans["b"].start_s == 1.5 and timeline.spans["b"].cause == "a"
    assert timeline.spans["c"].start_s == 1.0
    assert timeline.busy_s["engine"] == 2.0 and timeline.idle_s["engine"] == 0.5


def test_a_task_of_several_resources_waits_for_all():
    tasks = [
        Task("left", 1.0, ("l",)),
        Task("right", 3.0, ("r",)),
        Task("both", 1.0, ("l", "r")),
        Task("after", 1.0, ("l",)),
    ]
    spans = simulate(tasks).spans
    assert spans["both"].start_s == 3.0 and spans["both"].cause == "right"
    assert spans["after"].start_s == 4.0  # it came later, so it does not overtake


def test_durations_are_asked_at_the_start_and_a_policy_adds_tasks():
    asked = []

    def slower(now_s: float) -> float:
        asked.append(now_s)
        return 1.0 + now_s

    def policy(span, now_s):
        return [Task("more", 1.0, ("engine",), ("b", "a"))] if span.task.key == "b" else []

    timeline = simulate([Task("a", 2.0, ("engine",)), Task("b", slower, ("engine",), ("a",))], policy)
    assert asked == [2.0]
    assert timeline.makespan_s == 6.0 and [s.task.key for s in timeline.critical_path] == ["a", "b", "more"]


def test_a_simulation_that_forgets_uses_keys_again_and_takes_the_same_time():
    def again(span, now_s):
        seen.append((span.task.key, span.start_s, now_s))
        return [span.task] if len(seen) < 6 else []

    seen = []
    tasks = [Task("a", 1.0, ("engine",)), Task("b", 2.0, ("engine",))]
    assert simulate(tasks, again, keep=False).spans == {}
    assert seen == [("a", 0, 1), ("b", 1, 3), ("a", 3, 4), ("b", 4, 6), ("a", 6, 7), ("b", 7, 9), ("a", 9, 10)]
    with pytest.raises(DataError, match="'late' waits for 'b', which is no task"):
        simulate([Task("b", 1.0)], lambda span, now_s: [Task("late", 1.0, (), ("b",))], keep=False)


def test_nothing_takes_no_time():
    timeline = simulate([])
    assert timeline.makespan_s == 0 and timeline.critical_path == () and timeline.idle_s == {}
    assert simulate([Task("a", 0.0), Task("b", 0.0, (), ("a",))]).makespan_s == 0


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        ([Task("a", 1.0), Task("a", 1.0)], "two tasks have the key 'a'"),
        ([Task("a", 1.0, (), ("b",))], "'a' waits for 'b', which is no task"),
        ([Task("a", 1.0, (), ("b",)), Task("b", 1.0, (), ("a",)), Task("c", 1.0)], "2 tasks wait for each other"),
        ([Task("a", lambda _: float("nan"))], "duration of task 'a' at 0 s is nan"),
    ],
)
def test_what_cannot_run_is_said(tasks, told):
    with pytest.raises(DataError, match=told):
        simulate(tasks)


def test_negative_times_are_refused():
    for wrong in ({"duration": -1.0}, {"duration": 1.0, "gap_s": float("inf")}):
        with pytest.raises(DataError, match="finite and not negative"):
            Task("a", **wrong)
