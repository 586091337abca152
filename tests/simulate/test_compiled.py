"""The compiled engine gives what the reference in Python gives, bit by bit: times, order, causes and refusals."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.engine import simulate as by_reference

from cdmpp.errors import DataError
from cdmpp.simulate import Flow, Task, simulate

RATES = {"a": 10.0, "b": 7.0, "c": 1e9 / 3}
TIMES = st.one_of(st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0, 1, 2.0]), st.floats(0, 1e3))
FLOWS = st.builds(
    Flow,
    st.one_of(st.sampled_from([0.0, 1.0, 7.0, 10.0]), st.floats(0, 1e3)),
    st.lists(st.sampled_from([*RATES]), min_size=1, max_size=3).map(tuple),
    st.integers(1, 3),
)


class Slower:
    """A duration that is asked for; it says when."""

    def __init__(self, asked: list[float]) -> None:
        self.asked = asked

    def __call__(self, now_s: float) -> float:
        self.asked.append(now_s)
        return 0.5 + now_s / 3


@st.composite
def tasks_of(draw, most: int = 30) -> list[Task]:
    many = draw(st.integers(0, most))
    found = []
    for number in range(many):
        after = draw(st.lists(st.integers(0, number - 1), max_size=4)) if number else []
        found.append(
            Task(
                ("task", number),
                draw(st.one_of(TIMES, st.just(Slower([])))),
                tuple(draw(st.lists(st.sampled_from(["r", "s", ("t", 1)]), max_size=2, unique=True))),
                tuple(("task", other) for other in after),
                draw(st.integers(-2, 2)),
                draw(st.sampled_from([0.0, 0.0, 0.1, 0.5])),
                flow=draw(st.one_of(st.none(), FLOWS)),
            )
        )
    return draw(st.permutations(found))


@settings(max_examples=400, deadline=None)
@given(tasks_of())
def test_times_order_and_causes_are_those_of_the_reference(tasks):
    assert list(simulate(tasks, rates=RATES).spans.items()) == list(by_reference(tasks, rates=RATES).spans.items())


@settings(max_examples=200, deadline=None)
@given(tasks_of(12), tasks_of(12), st.booleans(), st.integers(0, 3))
def test_policies_are_asked_the_same_and_add_the_same(tasks, more, keeps, every):
    def run(simulated):
        asked, numbers = [], count()

        def policy(span, now_s):
            asked.append((span, now_s))
            if len(asked) > 60 or len(asked) % (every + 1):
                return []
            new = next(numbers)
            key = {task.key: ("more", new, task.key) for task in more}
            first = more[0].key if more else None
            return [
                Task(
                    key[task.key], task.duration, task.resources,
                    (*(key[one] for one in task.after), *((span.task.key,) if keeps and task.key == first else ())),
                    task.priority, task.gap_s, flow=task.flow,
                )
                for task in more
            ]  # fmt: skip

        spans = simulated(tasks, policy, RATES, keeps).spans
        return asked, list(spans.items())

    assert run(simulate) == run(by_reference)


@settings(max_examples=200, deadline=None)
@given(tasks_of(8), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=4), st.booleans())
def test_what_cannot_run_is_refused_in_the_same_words(tasks, edges, is_known):
    rates = RATES if is_known else {"a": 1.0}
    extra = [Task(("task", one), 1.0, ("r",), (("task", other),)) for one, other in edges]

    def outcome(simulated):
        try:
            return list(simulated([*tasks, *extra], rates=rates).spans.items())
        except DataError as error:
            return str(error)

    assert outcome(simulate) == outcome(by_reference)


@pytest.mark.parametrize("simulated", [simulate, by_reference])
@pytest.mark.parametrize(
    ("tasks", "rates", "told"),
    [
        ([Task("t", 1.0, flow=Flow(1.0, ("a", "x")))], {"a": 1.0}, "task 't': a flow goes over link 'x', whose rate"),
        ([], {"a": 0.0}, "link 'a' has a rate of 0.0 bytes a second: it must be finite and positive"),
        ([Task("a", lambda now_s: -1.0)], {}, "duration of task 'a' at 0 s is -1.0: it must be a number, finite"),
        ([Task("b", 1.0), Task("c", 1.0), Task("c", 1.0), Task("b", 1.0)], {}, "two tasks have the key 'c'"),
    ],
)
def test_refusals(simulated, tasks, rates, told):
    with pytest.raises(DataError, match=told):
        simulated(tasks, rates=rates)


def test_a_simulation_that_forgets_uses_its_memory_again():
    """Slots are reused however long it runs; what a resource did last is still known as a cause."""
    runs = {}
    for simulated in (simulate, by_reference):
        causes, left = [], [3000]

        def policy(span, now_s, causes=causes, left=left):
            causes.append((span.task.key, span.cause))
            left[0] -= 1
            return [Task(span.task.key, 1.0 + left[0] % 3, span.task.resources)] if left[0] > 0 else []

        simulated([Task(f"t{i}", 1.0, (f"r{i % 2}",)) for i in range(5)], policy, keep=False)
        runs[simulated] = causes
    assert runs[simulate] == runs[by_reference]
    assert len(runs[simulate]) > 3000
