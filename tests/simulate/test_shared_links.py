"""Shared links keep flows in groups; the oracle rates every flow anew at every change."""

from __future__ import annotations

import math

import numpy as np
import pytest
from reference.shared_links import SharedLinks

from cdmpp.simulate import Flow, Task, simulate


def oracle(tasks: list[Task], rates: dict[str, float]) -> dict[str, float]:
    """The end of each task, all of which begin to send after their duration."""
    left = {task.key: task.flow.bytes for task in tasks}
    flows = {task.key: task.flow for task in tasks}
    begins = {task.key: task.duration for task in tasks}
    now_s, ends = 0.0, dict[str, float]()
    while left:
        moving = [key for key in left if begins[key] <= now_s]
        on = {link: sum(flows[key].count for key in moving if link in flows[key].links) for link in rates}
        speeds = {key: min(rates[link] / on[link] for link in flows[key].links) for key in moving}
        next_s = min([begin for begin in begins.values() if begin > now_s], default=math.inf)
        next_s = min([next_s, *(now_s + left[key] / speed for key, speed in speeds.items())])
        for key, speed in speeds.items():
            left[key] -= speed * (next_s - now_s)
            if left[key] <= 1e-9 * flows[key].bytes:
                ends[key] = next_s
                del left[key]
        now_s = next_s
    return ends


def job(seed: int, links: int, flows: int, is_even: bool) -> tuple[list[Task], dict[str, float]]:
    random = np.random.default_rng(seed)
    rates = {f"l{i}": 100.0 if is_even else float(random.uniform(20, 500)) for i in range(links)}
    tasks = []
    for i in range(flows):
        crossed = random.permutation(links)[: random.integers(1, 4)]
        if random.random() < 0.7:  # most go over one busy link
            crossed = {0, *crossed.tolist()}
        flow = Flow(float(random.integers(1, 900)), tuple(f"l{link}" for link in crossed), int(random.integers(1, 4)))
        begin_s = float(random.integers(0, 40)) if is_even else float(random.uniform(0, 40))
        tasks.append(Task(f"t{i}", begin_s, flow=flow))
    return tasks, rates


@pytest.mark.parametrize("is_even", [True, False])
@pytest.mark.parametrize("links", [2, 6, 30])
@pytest.mark.parametrize("seed", range(8))
def test_flows_end_when_the_oracle_says(seed, links, is_even):
    tasks, rates = job(seed, links, 60, is_even)
    found = {key: span.end_s for key, span in simulate(tasks, rates=rates).spans.items()}
    assert found == pytest.approx(oracle(tasks, rates), rel=1e-9)


def test_a_join_touches_none_of_a_thousand_flows_that_share_a_link():
    """Rates are asked of the links as flows join; only the groups count, not the flows in them."""
    links = SharedLinks({"server": 1e9, **{f"worker {i}": 1e6 * (1 + i % 3) for i in range(1000)}})
    for i in range(1000):
        links.join(i, Flow(1e6, (f"worker {i}", "server")), 0.0)
    links.next_s(0.0)
    server = links._links["server"]
    assert server.members >= 997 and len(server.guests) <= 2
    assert len(server.caps) == 3


def test_the_busy_link_lets_flows_go_at_their_own_rate_and_takes_them_back():
    flows = [Task(f"t{i}", 0.0, flow=Flow(100.0 * (1 + i), (f"own {i}", "wire"))) for i in range(4)]
    rates = {"wire": 100.0, **{f"own {i}": 30.0 for i in range(4)}}
    found = {key: span.end_s for key, span in simulate(flows, rates=rates).spans.items()}
    # 25 each until 4 s; three at 30 each: 100 left at 4 s, over at 4 + 100/30; then two and one at 30
    assert found == pytest.approx({"t0": 4.0, "t1": 4 + 100 / 30, "t2": 4 + 200 / 30, "t3": 4 + 300 / 30})
