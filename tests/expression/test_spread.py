"""Spread: held-out runs say how many times as far as fits disagree, and intervals widen by that beyond the range."""

import numpy as np
import pytest

from cdmpp.expression import RunTable
from cdmpp.expression.design import Design
from cdmpp.expression.folds import resamples, widening_folds
from cdmpp.expression.spread import SIGMAS, Misses, Spread, steps_beyond


def misses(column: str, factor: float, rows: int = 4000, left: float = 0.01, disagreement: float = 0.03) -> Misses:
    """Residuals that are normal, with ``factor`` times the standard deviation that the fits tell."""
    size = factor * np.hypot(left, disagreement)
    residuals = np.random.default_rng(len(column)).normal(0, size, rows)
    return Misses(column, residuals, np.full(rows, left), np.full(rows, disagreement))


WITHIN = misses("", 1.0, disagreement=0.0)


def test_intervals_of_what_held_out_runs_show_cover_80_percent():
    spread = Spread.calibrated([WITHIN], [misses("gpus", 2.5)])
    assert spread.near == pytest.approx(1, abs=0.05) and spread.beyond == pytest.approx(2.5, rel=0.05)
    asked = misses("batches", 2.5)
    sigma = spread.sigma(asked.left, asked.disagreement, np.ones(4000))
    assert np.mean(np.abs(asked.residuals) <= SIGMAS * sigma) == pytest.approx(0.8, abs=0.03)


def test_each_column_weighs_the_same_however_many_runs_it_has():
    one = Spread.calibrated([WITHIN], [misses("gpus", 4.0, 100), misses("batch", 1.0, 4000)])
    other = Spread.calibrated([WITHIN], [misses("gpus", 4.0, 4000), misses("batch", 1.0, 100)])
    assert one.beyond == pytest.approx(other.beyond, rel=0.2) and 2 < one.beyond < 4
    often = Spread.calibrated([WITHIN], [misses("gpus", 4.0), *[misses("batch", 1.0)] * 2])
    assert often.beyond == pytest.approx(one.beyond, rel=0.2)


def test_intervals_beyond_the_range_are_never_narrower_than_within_it():
    assert Spread.calibrated([WITHIN], [misses("gpus", 0.3)]).beyond == 1
    assert Spread.calibrated([WITHIN], []).beyond > 1  # nobody knows


def test_widening_begins_at_the_end_of_the_range():
    spread = Spread(0.01, 1.0, 3.0)
    steps = steps_beyond({"gpus": (1.0, 8.0)}, {"gpus": np.array([0.25, 4.0, 8.0, 8 * 2**0.25, 16.0, 64.0])})
    assert steps.tolist() == pytest.approx([2, 0, 0, 0.25, 1, 3])
    assert spread.widening(steps).tolist() == pytest.approx([3, 1, 1, 3**0.5, 3, 3])


def test_runs_that_are_scarcely_beyond_the_others_show_no_widening():
    columns = {"size": np.repeat([1.0, 2.0, 4.0, 4.1], 6), "step_s": np.linspace(1, 2, 24)}
    folds = widening_folds(Design.of(RunTable.of(columns, "step_s", ["size"])))
    assert [len(one.held) for one in folds] == [12]  # above 2, and not above 4


def test_draws_keep_to_the_rows_and_to_the_size_of_each_group():
    columns = {"size": np.arange(1.0, 13.0), "step_s": np.linspace(1, 2, 12), "model": ["a"] * 4 + ["b"] * 8}
    design = Design.of(RunTable.of(columns, "step_s", ["size"], ["model"]))
    rows = np.array([0, 1, 2, 5, 6, 7, 8])
    draws = resamples(design, rows, 5, 0)
    assert len(draws) == 5 and all(set(one) <= set(rows) and (one < 4).sum() == 3 for one in draws)
    assert len({tuple(one) for one in draws}) > 1
