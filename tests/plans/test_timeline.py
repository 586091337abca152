"""Starts of ops by sums: those of every share of the update at once."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.plans.timeline import Timeline


def test_starts_are_sums_of_what_comes_before():
    chance = np.random.default_rng(0)
    seconds, pauses_s = chance.uniform(0, 1, (7, 3)), chance.uniform(0, 0.1, (7, 3))
    is_update = np.array([False, False, True, False, False, True, True])
    shares, places = np.array([1.0, 0.25]), np.array([0, 6, 3, 7])
    timeline = Timeline.of(seconds, pauses_s, is_update)
    found = timeline.starts_s(shares)[places]
    for number, share in enumerate(shares):
        scaled = seconds * np.where(is_update, share, 1.0)[:, np.newaxis]
        starts_s = np.concatenate([np.zeros((1, 3)), np.cumsum(scaled, axis=0)])
        assert found[:, 3 * number : 3 * number + 3] == pytest.approx(starts_s[places])
    assert np.array_equal(timeline.gaps_s(2)[places[:3]], np.tile(pauses_s[places[:3]], 2))
