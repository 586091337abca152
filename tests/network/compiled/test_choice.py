"""Which candidates of a task are worth compiling."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cdmpp.network.compiled.choice import worth_compiling


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=40), st.integers(1, 8))
def test_the_likeliest_until_sure_and_no_more_than_allowed(weights, most):
    chances = np.array(weights) / np.sum(weights)
    places = worth_compiling(chances, most)
    assert 1 <= len(places) <= most and len(set(places)) == len(places) and (np.diff(places) > 0).all()
    assert chances[places].min() >= np.sort(chances)[::-1][: len(places)].min()
    if len(places) < min(most, len(chances)):
        assert chances[places].sum() >= 0.7 - 1e-9
    assert np.delete(np.sort(chances[places]), 0).sum() < 0.7  # without the last there was doubt


def test_one_sure_winner_is_enough():
    assert worth_compiling(np.array([0.05, 0.9, 0.05]), 4).tolist() == [1]
    assert worth_compiling(np.full(16, 1 / 16), 4).tolist() == [0, 1, 2, 3]
    assert worth_compiling(np.array([1.0]), 4).tolist() == [0]
