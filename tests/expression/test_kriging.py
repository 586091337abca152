"""Kriging: near runs correct a prediction, far ones do not, and the standard deviation says which it was."""

import numpy as np
import pytest

from cdmpp.expression.kriging import Kriging


def grid():
    gpus, batch = (one.ravel() for one in np.meshgrid([1.0, 2, 4, 8], [8.0, 16, 32, 64, 128]))
    return {"gpus": gpus, "local_batch": batch}, np.zeros(len(gpus), dtype=int)


def smooth(columns):
    return 0.2 * np.sin(np.log2(columns["local_batch"])) + 0.03 * np.log2(columns["gpus"])


def test_what_is_left_is_found_between_runs():
    columns, codes = grid()
    kriging = Kriging.of(columns, codes, smooth(columns))
    between = {"gpus": np.array([3.0, 6.0]), "local_batch": np.array([24.0, 48.0])}
    found, sigma = kriging.at(between, np.zeros(2, dtype=int))
    assert found == pytest.approx(smooth(between), abs=0.03)
    assert (sigma < 0.1).all()


def test_nothing_is_known_far_away():
    columns, codes = grid()
    kriging = Kriging.of(columns, codes, smooth(columns))
    points = {"gpus": np.array([4.0, 4.0]), "local_batch": np.array([32.0, 2.0**80])}
    found, sigma = kriging.at(points, np.zeros(2, dtype=int))
    assert abs(found[1]) < 0.05
    assert sigma[1] > 3 * sigma[0]


def test_another_group_says_less():
    columns, codes = grid()
    kriging = Kriging.of(columns, codes, np.full(len(codes), 0.3))
    points = {"gpus": np.array([4.0, 4.0]), "local_batch": np.array([32.0, 32.0])}
    own, other = kriging.at(points, np.array([0, 1]))[0]
    assert own == pytest.approx(0.3, abs=0.02)
    assert other == pytest.approx(own / 2)


def test_noise_is_no_signal():
    columns, codes = grid()
    noise = np.random.default_rng(0).normal(0, 0.05, len(codes))
    found, sigma = Kriging.of(columns, codes, noise).at(columns, codes)
    assert np.sqrt((found**2).mean()) < 0.8 * noise.std()
    assert 0.02 < np.median(sigma) < 0.1


def test_runs_beyond_a_limit_are_drawn_by_lot_and_the_answer_stays():
    rng = np.random.default_rng(1)
    columns = {"gpus": rng.choice([1.0, 2, 4, 8], 2000), "local_batch": 2 ** rng.uniform(3, 7, 2000)}
    kriging = Kriging.of(columns, np.zeros(2000, dtype=int), smooth(columns))
    assert len(kriging.weights) < 2000
    point = {"gpus": np.array([2.0]), "local_batch": np.array([20.0])}
    assert kriging.at(point, np.zeros(1, dtype=int))[0] == pytest.approx(smooth(point), abs=0.02)
