"""Which candidates of a task are worth compiling."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdmpp import devices
from cdmpp.network.compiled.choice import Chooser, worth_compiling
from cdmpp.network.compiled.rule import ScheduleRule
from cdmpp.predict.catalogue import SHIPPED
from cdmpp.predict.stored_config import CONFIG, WEIGHTS


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


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_answers_are_remembered_of_one_model(tmp_path, name):
    """Weights that were trained again may be equal; intervals of devices that nobody saw are in the other file."""
    device, rule = devices.get("epyc-genoa"), ScheduleRule.parse("best_of:16")
    folder = shutil.copytree(SHIPPED / "cpus", tmp_path / "model")
    shipped = Chooser(None, SHIPPED / "cpus", device, rule).key
    assert Chooser(None, folder, device, rule).key == shipped
    (folder / name).write_bytes((folder / name).read_bytes() + b" ")
    assert Chooser(None, folder, device, rule).key != shipped
