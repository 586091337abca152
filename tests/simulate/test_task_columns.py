"""Columns that the compiled reader takes out of tasks are those that Python takes, and it holds on to nothing."""

from __future__ import annotations

import gc
import math
import sys
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.errors import DataError
from cdmpp.simulate import Flow, Task, task_reader
from cdmpp.simulate.task_columns import NONE, TaskColumns


class Named(NamedTuple):
    kind: str
    number: int


class Colliding:
    """Keys of one hash."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        if self.name == "raises":
            raise ArithmeticError("not comparable")
        return isinstance(other, Colliding) and other.name == self.name


def unlike(number: int) -> object:
    """Keys of every kind, anew at each call."""
    kinds = (
        f"word {number}",
        Named("op", number),
        number,
        float(number) + 0.5,
        Colliding(f"{number}"),
        (number, "é" * 3),
    )
    return kinds[number % len(kinds)]


def wait(now_s: float) -> float:
    return now_s


@st.composite
def graphs(draw) -> list[Task]:
    many = draw(st.integers(0, 200))
    numbers = st.integers(0, max(0, many - 1))
    times = st.sampled_from([0, 0.0, 1, 2.5, True, np.float64(0.1), np.float32(0.3), np.int64(4), Fraction(1, 3), wait])
    flows = st.sampled_from([None, None, Flow(3.0, ("a",)), Flow(2, ("b", "a"), 4), Flow(1.5, ("a",))])
    return [
        Task(
            unlike(number),
            draw(times),
            tuple(unlike(one) for one in draw(st.lists(st.integers(0, 3), max_size=2))),
            tuple(unlike(one) for one in draw(st.lists(numbers, max_size=3))),
            draw(st.integers(-(2**40), 2**40)),
            draw(st.sampled_from([0.0, 0, 0.25, np.float64(1.5)])),
            flow=draw(flows),
        )
        for number in range(many)
    ]


@settings(max_examples=100, deadline=None)
@given(graphs(), st.sampled_from([list, tuple]))
def test_columns_are_those_that_python_takes(tasks, kind):
    columns = TaskColumns.of(kind(tasks))
    numbers = {task.key: number for number, task in enumerate(tasks)}
    assert dict(columns.numbers) == numbers == dict(columns.numbers.items()) and len(columns.numbers) == len(tasks)
    assert columns.begins.tolist() == [0, *np.cumsum([len(task.after) for task in tasks], dtype=int)]
    assert columns.befores.tolist() == [numbers[key] for task in tasks for key in task.after]
    times = [math.nan if callable(task.duration) else float(task.duration) for task in tasks]
    np.testing.assert_array_equal(columns.duration_s, np.array(times, float))
    assert columns.gap_s.tolist() == [float(task.gap_s) for task in tasks]
    assert columns.priority.tolist() == [float(task.priority) for task in tasks]
    assert list(columns.sets) == list(dict.fromkeys(task.resources for task in tasks))
    assert [columns.sets[place] for place in columns.resources] == [task.resources for task in tasks]
    flows = [task.flow for task in tasks]
    assert list(columns.ways) == list(dict.fromkeys(flow.links for flow in flows if flow))
    assert [None if way == NONE else columns.ways[way] for way in columns.way] == [
        flow and flow.links for flow in flows
    ]
    assert columns.bytes.tolist() == [flow.bytes if flow else 0.0 for flow in flows]
    assert columns.count.tolist() == [flow.count if flow else 1 for flow in flows]


def test_keys_that_are_equal_are_one_key_as_in_a_dict():
    tasks = [Task(1, 1.0), Task("a", 1.0, after=(1.0, True))]
    assert TaskColumns.of(tasks).befores.tolist() == [0, 0]
    with pytest.raises(DataError, match="two tasks have the key 1.0"):
        TaskColumns.of([*tasks, Task(1.0, 2.0), Task("a", 1.0)])


def test_the_first_fault_is_said():
    tasks = [Task(f"t{number}", 1.0) for number in range(300)]
    with pytest.raises(DataError, match="two tasks have the key 't7'"):
        TaskColumns.of([*tasks, Task("t7", 1.0), Task("t3", 1.0)])
    wrong = Task("last", 1.0, after=("t1", "t900", "t901"))
    with pytest.raises(DataError, match="task 'last' waits for 't900', which is no task"):
        TaskColumns.of([*tasks, wrong, Task("later", 1.0, after=("t902",))])
    with pytest.raises(DataError, match="two tasks have the key 't3'"):
        TaskColumns.of([*tasks, wrong, Task("t3", 1.0)])


def test_lists_of_inputs_are_read_as_tuples_are():
    tasks = [Task("a", 1.0), Task("b", 1.0, after=["a", "a"])]
    assert TaskColumns.of(tasks).befores.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("tasks", "error", "words"),
    [
        ([Task(["list"], 1.0)], TypeError, "unhashable type: 'list'"),
        ([Task("a", 1.0, after=(["list"],))], TypeError, "unhashable type: 'list'"),
        ([Task("a", 1.0, (["list"],))], TypeError, "unhashable type: 'list'"),
        ([Task("a", 1.0, after=7)], TypeError, "'int' object is not iterable"),
        ([Task("a", 1.0, priority="first")], TypeError, "must be real number, not str"),
        ([Task("a", 1.0, priority=10**400)], OverflowError, "int too large"),
        ([Task("a", 1.0), "no task"], AttributeError, "has no attribute 'key'"),
        ([Task(Colliding("raises"), 1.0), Task(Colliding("b"), 1.0)], ArithmeticError, "not comparable"),
        ([Task(Colliding("raises"), 1.0), Task("b", 1.0, after=(Colliding("c"),))], ArithmeticError, "not comparable"),
    ],
)  # fmt: skip
def test_what_is_no_task_is_pythons_error(tasks, error, words):
    with pytest.raises(error, match=words) as caught:
        TaskColumns.of([Task("before", 1.0), *tasks])
    assert caught.value.__notes__[0].startswith("so it was with task number ")


class Longer(Task):
    """Its duration is worked out."""

    @property
    def duration(self) -> float:
        return 2.0 * len(self.key)


class Alike:
    """It has the fields of a task and is of no class of ours; some are made when somebody asks."""

    key, gap_s, priority, flow, label = "alike", 0.5, 3, None, ""
    duration = 4

    @property
    def resources(self) -> tuple[str, ...]:
        return tuple(["made", "anew"])

    @property
    def after(self) -> list[str]:
        return ["longer", "".join(["fir", "st"])]


def test_subclasses_and_other_classes_are_read_by_the_names_of_their_fields():
    longer = object.__new__(Longer)
    for name, value in (("key", "longer"), ("resources", ()), ("after", ()), ("priority", 0), ("gap_s", 0.0)):
        object.__setattr__(longer, name, value)
    object.__setattr__(longer, "flow", None)
    columns = TaskColumns.of([Task("first", 1.0), longer, Alike(), Task("last", 5.0, after=("alike",))])
    assert columns.duration_s.tolist() == [1.0, 12.0, 4.0, 5.0]
    assert columns.sets == ((), ("made", "anew")) and columns.resources.tolist() == [0, 0, 1, 0]
    assert columns.befores.tolist() == [1, 0, 2] and columns.begins.tolist() == [0, 0, 0, 2, 3]
    assert columns.gap_s.tolist() == [0.0, 0.0, 0.5, 0.0] and columns.priority.tolist() == [0, 0, 3, 0]


def test_a_task_without_a_field_is_said_by_its_number():
    broken = Task("broken", 1.0)
    object.__delattr__(broken, "after")
    with pytest.raises(AttributeError, match="after") as caught:
        TaskColumns.of([Task("first", 1.0), broken])
    assert caught.value.__notes__ == ["so it was with task number 1, 'broken'"]


def test_tasks_that_python_cannot_lay_out_as_expected_are_read_by_name(monkeypatch):
    monkeypatch.setattr(task_reader, "_offsets", lambda: None)
    test_keys_that_are_equal_are_one_key_as_in_a_dict()
    test_many_sets_of_resources_and_many_tasks()


def test_columns_of_one_value_take_no_memory_and_repeat():
    tasks = [Task(number, 1.0, gap_s=0.5, priority=2) for number in range(1000)]
    columns = TaskColumns.of(tasks)
    for one in (columns.gap_s, columns.priority, columns.way, columns.bytes, columns.count):
        assert one.strides == (0,) and one.shape == (1000,)
    assert columns.gap_s[999] == 0.5 and columns.priority[999] == 2 and columns.way[999] == NONE
    late = TaskColumns.of([*tasks, Task("late", 1.0, gap_s=-0.0)])
    assert late.gap_s.tolist() == [0.5] * 1000 + [0.0] and late.priority.tolist() == [2.0] * 1000 + [0.0]


@pytest.mark.parametrize("many", [10, 30_000, 100_000])
@pytest.mark.parametrize("far", [False, True])
def test_inputs_near_and_far_and_keys_given_twice(many, far):
    """Distances that are always the same are guessed; those that never are, are looked up."""
    random = np.random.default_rng(many)
    before = [random.integers(0, many, 2) if far else [max(0, at - 3), max(0, at - 70)] for at in range(many)]
    tasks = [Task(f"t{at}", 1.0, after=tuple(f"t{one}" for one in own)) for at, own in enumerate(before)]
    assert TaskColumns.of(tasks).befores.tolist() == np.array(before).ravel().tolist()
    first, second = sorted(random.choice(many // 2, 2, replace=False).tolist())
    tasks[many // 2 + first], tasks[many // 2 + second] = Task(f"t{second}", 1.0), Task(f"t{first}", 1.0)
    with pytest.raises(DataError, match=f"two tasks have the key 't{second}'"):
        TaskColumns.of(tasks)


def test_no_reference_is_kept_or_lost():
    key, name, after, resources = (f"key {1}", f"first {0}", (f"first {0}",), (f"queue {0}",))
    duration, priority = 1.25 + len(key), 10**10 + len(key)
    held = (key, name, after, after[0], resources, resources[0], duration, priority)
    good = [Task(name, duration, resources, (), priority), Task(key, duration, resources, after, priority)]
    before = [sys.getrefcount(one) for one in held]
    for more in ([], [Task("x", 1.0, after=("none",))], [Task(key, 1.0)], [Task(["list"], 1.0)]) * 50:
        try:
            TaskColumns.of([*good, *more])
        except (DataError, TypeError):
            pass
    del more
    gc.collect()
    assert [sys.getrefcount(one) for one in held] == before


def test_many_sets_of_resources_and_many_tasks():
    tasks = [
        Task(f"t{number}", 1.0, (number % 1000,), (f"t{number - 1}",) if number else ()) for number in range(20_000)
    ]
    columns = TaskColumns.of(tasks)
    assert columns.sets == tuple((number,) for number in range(1000))
    assert columns.resources.tolist() == [number % 1000 for number in range(20_000)]
    assert columns.befores.tolist() == list(range(19_999))
