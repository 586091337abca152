"""Scores of large jobs, and fits of a few terms."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.plans.large_scores import Choice, Interval, nearest_in_order, of_one, of_terms, out_of_fold
from benchmarks.plans.part_weights import part_weights
from benchmarks.plans.vtrain_jobs import Row
from benchmarks.plans.vtrain_kinds import Kinds
from cdmpp.plans.transformer_shape import TransformerShape


def test_baselines_and_folds_see_no_judged_row():
    amounts, seen = np.array([1.0, 2.0, 4.0, 8.0]), np.array([True, True, True, False])
    measured = np.array([2.0, 4.0, 8.0, 999.0])
    assert of_one(amounts, measured, seen)[3] == pytest.approx(16.0)
    assert of_terms(np.stack([amounts, np.ones(4)], axis=1), measured, seen) == pytest.approx([2, 4, 8, 16])

    def mean(fit: np.ndarray, asked: np.ndarray) -> np.ndarray:
        return np.full(int(asked.sum()), measured[fit].mean())

    seconds, places = out_of_fold("aabb", seen, mean)
    assert dict(zip(places.tolist(), seconds.tolist(), strict=True)) == {0: 8.0, 1: 8.0, 2: 3.0}


def test_an_interval_and_a_choice_of_plans():
    predicted, measured = np.ones(11), np.linspace(0.5, 1.5, 11)
    assert Interval.of(predicted, measured) == pytest.approx(Interval(0.6, 1.4))
    assert Interval(0.6, 1.4).covered(predicted, measured) == pytest.approx(100 * 9 / 11)
    found = Choice.of("aabbc", np.array([1.0, 2.0, 2.0, 1.0, 1.0]), np.array([1.0, 2.0, 1.0, 1.04, 9.0]))
    assert found.cells == ["2", "50", "100", "2.0"]


def test_numbers_change_as_little_as_an_order_asks():
    order = np.array([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]])  # rising
    found = nearest_in_order(np.array([1.0, 3.0, 2.0]), np.array([1.0, 1.0, 5.0]), order)
    assert found == pytest.approx([1.0, 2.0, 2.0])
    assert nearest_in_order(np.array([1.0, 2.0, 3.0]), np.ones(3), order) == pytest.approx([1.0, 2.0, 3.0])


def test_weights_of_parts_are_drawn_to_what_they_are_before_a_fit():
    """Seconds are 2 of a part and 0.5 a turn; a part of no row keeps 1, and one job that stalled changes little."""
    rng = np.random.default_rng(0)
    parts = np.stack([rng.uniform(1, 5, 40), rng.integers(1, 9, 40).astype(float), np.zeros(40)], axis=1)
    measured, folds, prior = parts @ np.array([2.0, 0.5, 7.0]), np.arange(40) % 2, np.array([1.0, 0.0, 1.0])
    found = part_weights(parts, measured, prior, folds)
    assert found == pytest.approx([2.0, 0.5, 1.0], rel=0.05)
    assert found[0] < 2  # drawn to 1
    measured[3] *= 10
    assert part_weights(parts, measured, prior, folds) == pytest.approx(found, rel=0.1)


def test_factors_of_kinds_are_of_rows_that_are_seen():
    """Two rows of one kind that take twice as long, and one of another that nobody saw."""
    shape = TransformerShape(12, 1024, 16, 4096, 50257, 1024, positions=1024)
    rows = tuple(Row(shape, 4, micro, 8, 1, 4, 1, 0.0) for micro in (1, 1, 1, 2))
    kinds = Kinds(rows, np.array([2.0, 4.0, 9.0, 5.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    found = kinds.known(np.array([True, True, False, False]))
    assert found == pytest.approx([2 ** (2 / 3), 2 * 2 ** (2 / 3), 3 * 2 ** (2 / 3), 4.0])  # drawn to 1 by one row more
    assert kinds.left_out(np.array([0, 0, 1, 1]))[2:] == pytest.approx([3 * 2 ** (2 / 3), 4.0])
