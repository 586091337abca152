"""Programs unlike the training programs are told from the others, in the model's eyes and by their inputs."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from cdmpp.errors import DataError
from cdmpp.uncertainty.novelty import ProgramSketch, fit_novelty


def sketches(rng, n, width=48, shift=0.0, inputs=6, beyond=0.0):
    """Hidden vectors near a plane of 5 dimensions; ``shift`` leaves it, ``beyond`` moves an input number."""
    plane = np.random.default_rng(0).normal(size=(5, width))
    hidden = rng.normal(size=(n, 5)) @ plane + 0.1 * rng.normal(size=(n, width)) + shift
    largest = rng.uniform(5, 10, (n, inputs))
    smallest = largest - rng.uniform(0, 5, (n, inputs))
    largest[:, 0] += beyond
    return ProgramSketch(hidden.astype(np.float32), largest.astype(np.float32), smallest.astype(np.float32))


@pytest.fixture(scope="module")
def novelty():
    rng = np.random.default_rng(1)
    return fit_novelty(sketches(rng, 600), sketches(rng, 400))


def test_programs_like_the_validation_ones_are_rarely_flagged(novelty):
    score = novelty.score(sketches(np.random.default_rng(2), 2000))
    assert novelty.unlike(score).mean() < 0.03
    share = novelty.share_nearer(score)
    assert 0.45 < share.mean() < 0.55 and share.min() >= 0 and share.max() <= 1
    assert novelty.distance(sketches(np.random.default_rng(2), 2000).hidden).mean() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("change", [{"shift": 0.5}, {"beyond": 10.0}, {"beyond": -30.0}])
def test_strange_programs_are_flagged(novelty, change):
    strange = sketches(np.random.default_rng(3), 200, **change)
    if change.get("beyond", 0) < 0:
        strange = ProgramSketch(strange.hidden, strange.largest, strange.smallest - 30)
    score = novelty.score(strange)
    assert novelty.unlike(score).all() and (novelty.share_nearer(score) == 1).all()


def test_farther_is_never_nearer(novelty):
    base = sketches(np.random.default_rng(4), 1)
    steps = [ProgramSketch(base.hidden + step, base.largest, base.smallest) for step in (0.2, 0.4, 0.8, 1.6)]
    scores = [novelty.score(step)[0] for step in steps]
    assert scores == sorted(scores)


@pytest.mark.parametrize(("n_train", "n_validation"), [(1, 1), (3, 2), (40, 1)])
def test_few_programs_and_constant_vectors_do_no_harm(n_train, n_validation):
    rng = np.random.default_rng(6)
    few = fit_novelty(sketches(rng, n_train), sketches(rng, n_validation))
    one = sketches(rng, 1)
    same = ProgramSketch(*(np.repeat(x, n_train, axis=0) for x in (one.hidden, one.largest, one.smallest)))
    for fitted in (few, fit_novelty(same, same)):
        score = fitted.score(sketches(rng, 10))
        share = fitted.share_nearer(score)
        assert np.isfinite(score).all() and (share >= 0).all() and (share <= 1).all()


def test_distance_and_excess_are_those_of_their_definition_in_a_copy_too():
    rng = np.random.default_rng(5)
    training, other = (
        ProgramSketch(*(rng.normal(size=(n, width)).astype(np.float32) for width in (40, 21, 21))) for n in (200, 30)
    )
    novelty = fit_novelty(training, other)
    centred = other.hidden.astype(np.float64) - novelty.mean
    along = centred @ novelty.directions.T
    rest = (centred**2).sum(1) - (along**2).sum(1)
    squared = (along**2 / novelty.variances[:-1]).sum(1) + rest / novelty.variances[-1]
    above, below = other.largest - novelty.largest, novelty.smallest - other.smallest
    excess = np.maximum((np.maximum(above, below) / novelty.deviation).max(1), 0.0)
    for one in (novelty, copy.deepcopy(novelty)):
        np.testing.assert_allclose(one.distance(other.hidden), np.sqrt(squared / 40), rtol=1e-12)
        np.testing.assert_allclose(one.excess(other), excess, rtol=1e-12)


def test_a_number_that_is_none_is_no_excess_of_zero():
    rng = np.random.default_rng(6)
    training = ProgramSketch(*(rng.normal(size=(50, width)).astype(np.float32) for width in (8, 19, 19)))
    novelty = fit_novelty(training, training)
    for column in (0, 18):
        strange = training.largest.copy()
        strange[3, column] = np.nan
        found = novelty.excess(ProgramSketch(training.hidden, strange, training.smallest))
        assert np.flatnonzero(np.isnan(found)).tolist() == [3]
    with pytest.raises(DataError, match="19 numbers"):
        novelty.excess(ProgramSketch(training.hidden, training.largest[:, :5], training.smallest[:, :5]))
