"""Flows on shared links: times by hand, bytes that are kept, an order that is always the same."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.errors import DataError
from cdmpp.simulate import Flow, Task, simulate


def sends(name: str, n_bytes: float, *links: str, after: tuple[str, ...] = (), latency_s: float = 0.0) -> Task:
    return Task(name, latency_s, (), after, flow=Flow(n_bytes, links))


def ends(tasks: list[Task], **rates: float) -> dict[str, float]:
    return {name: span.end_s for name, span in simulate(tasks, rates=rates).spans.items()}


def test_two_flows_halve_the_rate_until_one_leaves():
    tasks = [sends("long", 300.0, "wire"), sends("short", 100.0, "wire")]
    # 50 bytes a second each until the short one is there at 2 s, then 200 bytes at the full rate
    assert ends(tasks, wire=100.0) == {"long": 4.0, "short": 2.0}


def test_a_flow_that_stands_for_three_takes_the_place_of_three():
    each = [sends(f"equal {number}", 100.0, "wire") for number in range(3)]
    one = Task("equal", 0.0, flow=Flow(100.0, ("wire",), 3))
    other = sends("other", 200.0, "wire")
    # four flows at 25 bytes a second until the three are there at 4 s, then the other one's 100 bytes at the full rate
    assert ends([one, other], wire=100.0) == {"equal": 4.0, "other": 5.0}
    assert set(ends([*each, other], wire=100.0).values()) == {4.0, 5.0}
    with pytest.raises(DataError, match="0 equal flows"):
        Flow(1.0, ("wire",), 0)


def test_one_that_joins_later_slows_the_other_from_then_on():
    tasks = [sends("first", 300.0, "wire"), Task("wait", 1.0), sends("second", 200.0, "wire", after=("wait",))]
    # 100 bytes alone, then both have 200 left at 50 bytes a second
    assert ends(tasks, wire=100.0) == {"first": 5.0, "wait": 1.0, "second": 5.0}


def test_the_tightest_link_decides_and_latency_comes_before_the_first_byte():
    tasks = [
        sends("a", 100.0, "out a", "in c", latency_s=0.5),
        sends("b", 100.0, "out b", "in c", latency_s=0.5),
        sends("c", 100.0, "out c", "in a"),
    ]
    rates = {"out a": 100.0, "out b": 100.0, "out c": 100.0, "in a": 100.0, "in c": 100.0}
    assert ends(tasks, **rates) == {"a": 2.5, "b": 2.5, "c": 1.0}
    assert ends(tasks, **{**rates, "in a": 50.0})["c"] == 2.0


def test_gaps_resources_and_successors_count_from_the_last_byte():
    tasks = [
        Task("send", 1.0, ("stream",), gap_s=0.5, flow=Flow(100.0, ("wire",))),
        Task("next", 1.0, ("stream",)),
        Task("use", 1.0, (), ("send",)),
        Task("nothing", 0.0, (), (), flow=Flow(0.0, ("wire",))),
    ]
    timeline = simulate(tasks, rates={"wire": 100.0})
    starts = {name: span.start_s for name, span in timeline.spans.items()}
    assert starts == {"send": 0.0, "nothing": 0.0, "next": 2.5, "use": 2.0}
    assert timeline.spans["nothing"].end_s == 0.0
    assert [span.task.key for span in timeline.critical_path] == ["send", "next"]


@pytest.mark.parametrize("seed", range(10))
def test_a_link_carries_its_bytes_at_its_rate_and_always_the_same_way(seed):
    random = np.random.default_rng(seed)
    tasks = [
        Task(f"t{i}", float(random.integers(3)), (), tuple(f"t{j}" for j in random.permutation(i)[:2]),
             flow=Flow(float(random.integers(1, 500)), ("wire",)))
        for i in range(40)
    ]  # fmt: skip
    timeline = simulate(tasks, rates={"wire": 100.0})
    moving = sorted((span.start_s + span.task.duration, span.end_s) for span in timeline.spans.values())
    busy_s, until_s = 0.0, 0.0
    for start_s, end_s in moving:
        busy_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    assert busy_s * 100.0 == pytest.approx(sum(task.flow.bytes for task in tasks))
    assert timeline.spans == simulate(tasks, rates={"wire": 100.0}).spans


@pytest.mark.parametrize("seed", range(5))
def test_time_goes_with_bytes_by_rate(seed):
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 500, 30).astype(float)
    ways = [(f"out {random.integers(4)}", f"in {random.integers(4)}") for _ in sizes]
    rates = {f"{way} {i}": 100.0 for way in ("in", "out") for i in range(4)}

    def took_s(scale: float, faster: float) -> float:
        tasks = [sends(f"t{i}", scale * size, *way) for i, (size, way) in enumerate(zip(sizes, ways, strict=True))]
        return simulate(tasks, rates={name: faster * rate for name, rate in rates.items()}).makespan_s

    assert took_s(1.0, 2.0) == pytest.approx(took_s(1.0, 1.0) / 2)
    assert took_s(1.5, 1.0) == pytest.approx(1.5 * took_s(1.0, 1.0))


def test_what_cannot_flow_is_said():
    with pytest.raises(DataError, match="task 'a': a flow goes over link 'wire', whose rate is not given"):
        simulate([sends("a", 1.0, "wire")])
    with pytest.raises(DataError, match="rate of 0.0 bytes a second"):
        simulate([sends("a", 1.0, "wire")], rates={"wire": 0.0})
    with pytest.raises(DataError, match="a flow of -1.0 bytes"):
        Flow(-1.0, ("wire",))
    with pytest.raises(DataError, match="on some link"):
        Flow(1.0, ())
