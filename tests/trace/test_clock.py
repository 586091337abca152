"""Clocks: the least shifts that order allows, exactly; and two events where there are none."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from cdmpp.errors import DataError
from cdmpp.trace.clock import Order, shifts


def order(first: int, first_s: float, then: int, then_s: float) -> Order:
    return Order(first, first_s, f"begin on {first}", then, then_s, f"end on {then}")


def both_ways(a: int, b: int, ahead_s: float, took_s: float) -> list[Order]:
    """An exchange that begins at 0 and ends after ``took_s`` on ranks whose clocks differ by ``ahead_s``."""
    return [order(a, 0.0, b, ahead_s + took_s), order(b, ahead_s, a, took_s)]


def test_clocks_that_agree_stay():
    assert shifts([0, 1], both_ways(0, 1, 0.0, 1.0)) == {0: 0.0, 1: 0.0}


def test_half_of_the_shift_goes_to_each_rank():
    found = shifts([0, 1], both_ways(0, 1, 5.0, 0.0), slack_s=0.0)
    assert found[0] == pytest.approx(2.5, abs=1e-12) and found[1] == pytest.approx(-2.5, abs=1e-12)


def test_no_more_is_shifted_than_must_be():
    found = shifts([0, 1], both_ways(0, 1, 5.0, 1.0), slack_s=0.0)
    assert found[1] - found[0] == pytest.approx(-4.0)


def test_clocks_hours_apart():
    found = shifts([0, 1, 2], both_ways(0, 1, 7200.0, 1e-3) + both_ways(1, 2, -3600.0, 1e-3), slack_s=0.0)
    assert found[1] - found[0] == pytest.approx(-7200.0, abs=2e-3)
    assert found[2] - found[1] == pytest.approx(3600.0, abs=2e-3)


@pytest.mark.parametrize("seed", range(8))
def test_it_is_the_least_of_all(seed):
    random = np.random.default_rng(seed)
    ahead = random.normal(size=4)
    orders = [
        one
        for a in range(4)
        for b in range(a)
        for one in both_ways(a, b, ahead[b] - ahead[a], random.uniform(0.1, 0.4))
    ]
    found = np.array(list(shifts(range(4), orders, slack_s=0.0).values()))
    rules = [
        {"type": "ineq", "fun": lambda x, o=o: o.then_s + x[o.then_rank] - o.first_s - x[o.first_rank]} for o in orders
    ]
    assert all(rule["fun"](found) > -1e-9 for rule in rules)
    best = minimize(lambda x: x @ x, -ahead, constraints=rules, method="SLSQP")
    assert found @ found == pytest.approx(best.fun, rel=1e-4)


def test_what_cannot_be_is_told_with_two_events():
    orders = [order(0, 10.0, 1, 4.0), order(1, 10.0, 0, 9.0)]
    with pytest.raises(DataError, match=r"begin on 0 \(rank 0, 10.* end on 1 .*begin on 1 .* end on 0"):
        shifts([0, 1], orders)
    circle = [order(0, 1.0, 1, 0.0), order(1, 1.0, 2, 0.0), order(2, 1.0, 0, 0.0)]
    with pytest.raises(DataError, match="no shift of the clocks"):
        shifts([0, 1, 2], circle)
