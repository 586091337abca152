"""What a learner expects of other programs: a Gaussian process, solved once between two batches."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import cho_solve, cholesky

from cdmpp.tuning.learner import Learner, Weights

WIDTH = 6


def plain(learner: Learner, features: np.ndarray, task: str) -> tuple[np.ndarray, np.ndarray]:
    """The same in one piece, every time anew."""
    weights = learner.weights
    centre, scale = learner.features.mean(0), learner.features.std(0)
    used = scale > 1e-6
    known, new = ((x[:, used] - centre[used]) / scale[used] for x in (learner.features, features))

    def covariance(left, left_tasks, right, right_tasks):
        same = np.equal.outer(left_tasks, right_tasks)
        distance = (left**2).sum(1)[:, None] + (right**2).sum(1) - 2.0 * left @ right.T
        near = np.exp(-np.maximum(distance, 0.0) / (2.0 * left.shape[1]))
        offset = weights.device**2 + np.where(same, weights.task**2, 0.0)
        return offset + near * (weights.shared**2 + np.where(same, weights.own**2, 0.0))

    among = covariance(known, learner.tasks, known, learner.tasks) + weights.noise**2 * np.eye(len(known))
    towards = covariance(new, np.full(len(new), task, object), known, learner.tasks)
    factor = cholesky(among, lower=True)
    explained = np.einsum("ij,ji->i", towards, cho_solve((factor, True), towards.T))
    before = weights.device**2 + weights.task**2 + weights.shared**2 + weights.own**2
    return towards @ cho_solve((factor, True), learner.errors), np.sqrt(np.maximum(before - explained, 0.0))


@pytest.fixture
def random():
    return np.random.default_rng(0)


def taught(learner: Learner, random: np.random.Generator, task: str, many: int) -> None:
    features = random.normal(size=(many, WIDTH))
    features[:, 2] = 1.0  # it never differs
    learner.learn(features, random.normal(size=many), task)


def test_nothing_learned_changes_nothing():
    mean, spread = Learner().residuals(np.ones((3, WIDTH)), "a")
    assert mean.tolist() == [0.0] * 3 == Learner().expected(np.ones((3, WIDTH)), "a").tolist()
    assert spread == pytest.approx(np.sqrt(0.2**2 + 1 + 0.15**2 + 1))


def test_it_is_the_process_that_is_solved_anew_for_every_question(random):
    learner = Learner()
    new = random.normal(size=(40, WIDTH))
    for task, many in (("a", 16), ("b", 32), ("a", 8), ("c", 1)):
        taught(learner, random, task, many)
        for asked in ("a", "b", "never seen", "a"):
            mean, spread = learner.residuals(new, asked)
            assert (learner.expected(new, asked) == mean).all()
            np.testing.assert_array_equal(mean, plain(learner, new, asked)[0])
            np.testing.assert_allclose(spread, plain(learner, new, asked)[1], rtol=1e-12)


def test_what_is_replaced_is_not_remembered(random):
    learner, new = Learner(), random.normal(size=(5, WIDTH))
    taught(learner, random, "a", 16)
    before = learner.expected(new, "a")
    learner.errors = -learner.errors
    np.testing.assert_allclose(learner.expected(new, "a"), -before, rtol=1e-12)
    learner.weights = Weights(noise=1.0)
    assert (abs(learner.expected(new, "a")) < abs(before)).all()
