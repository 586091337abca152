"""The search over commit rates: planted curves have the reward that is the inverse of their time to the target."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdmpp.synchrony.rate_search import RateSearch, reward_of


@given(st.floats(1e-3, 10), st.floats(0.2, 5), st.floats(0, 0.3), st.floats(1, 100))
def test_reward_is_the_inverse_of_the_planted_time(a, b, c, look_s):
    losses = [1 / (a * t + b) + c for t in (0, look_s, 2 * look_s)]
    target = c + (losses[2] - c) / 2
    seconds = (1 / (target - c) - b) / a
    assert reward_of(losses, look_s, target) == pytest.approx(1 / seconds, rel=1e-3)


def test_what_never_reaches_the_target_has_no_reward():
    assert reward_of([1.0, 1.0, 1.0], 1, 0.5) == 0
    assert reward_of([1.0, 1.1, 1.2], 1, 0.5) == 0
    losses = [1 / (t + 1) + 0.5 for t in (0, 1, 2)]
    assert reward_of(losses, 1, 0.4) == 0
    assert reward_of(losses, 1, 0.9) == math.inf


def run(search, speed, until_s):
    """Let a loss fall at the speed that each rate has; the rates over time."""
    progress, now_s, rates = 0.0, 0.0, []
    while now_s <= until_s:
        search.observe(1 / (progress + 0.5), now_s)
        rates.append(search.rate)
        progress += speed(search.rate) * search.look_s
        now_s += search.look_s
    return rates


def test_the_rate_rises_while_the_loss_falls_faster_and_stays_at_the_best():
    search = RateSearch(60, target_loss=1e-3, again_s=1e9, again_rise=0.3)
    rates = run(search, lambda rate: {1: 0.01, 2: 0.02, 3: 0.03, 4: 0.02}[rate], 600)
    assert rates[:9] == [1, 1, 2, 2, 3, 3, 4, 4, 3] and set(rates[9:]) == {3}
    assert not search.is_searching


def test_it_searches_anew_after_a_while_and_when_the_loss_rises():
    search = RateSearch(60, target_loss=1e-3, again_s=1000, again_rise=0.3)
    rates = run(search, lambda rate: 0.01 if rate < 3 else 0.001, 2000)
    assert rates.count(1) >= 4 and 3 in rates
    risen = RateSearch(60, target_loss=1e-3, again_s=1e9, again_rise=0.3)
    run(risen, lambda rate: 0.01 if rate < 3 else 0.001, 600)
    assert not risen.is_searching
    risen.observe(1.29 * risen._settled_loss, 700)
    assert not risen.is_searching
    risen.observe(1.31 * risen._settled_loss, 730)
    assert risen.is_searching and risen.rate == 1
