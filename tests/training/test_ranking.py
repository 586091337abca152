"""A ranker learns which programs of a task are fast, and says so of tasks that it never saw."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cdmpp.devices import get
from cdmpp.model.pooled import POOLED_WIDTH, pooled, with_devices
from cdmpp.training.ranking import fit_ranker
from tests.evaluation.conftest import make_data


@pytest.fixture(scope="module")
def dataset():
    return make_data(n_tasks=400, each=8).dataset


@pytest.fixture(scope="module")
def ranker(dataset):
    return fit_ranker(dataset, np.arange(350 * 8), seed=0)


def test_finds_fast_programs_of_unseen_tasks(dataset, ranker):
    rows = np.arange(350 * 8, 400 * 8)
    columns = with_devices(dataset.asts.take(rows), [get("a100")] * len(rows))
    scores = ranker(torch.from_numpy(columns)).numpy().reshape(50, 8)
    latency = dataset.latency_s[rows].reshape(50, 8)
    chosen = latency[np.arange(50), scores.argmax(1)] / latency.min(1)
    assert np.median(chosen) < 1.2 < np.median(latency / latency.min(1, keepdims=True)) / 2
    # What lies far outside the training programs is clipped, not an overflow.
    assert np.isfinite(ranker(torch.from_numpy(1e30 * np.ones_like(columns[:1]))).numpy()).all()


def test_same_seed_gives_same_weights_and_leaves_the_generator_alone(dataset):
    rows = np.arange(130 * 8)
    state = torch.random.get_rng_state()
    first, second = (fit_ranker(dataset, rows, seed=3).state_dict() for _ in range(2))
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = fit_ranker(dataset, rows, seed=4).state_dict()
    assert not torch.equal(first["members.0.0.weight"], other["members.0.0.weight"])


def test_few_tasks_or_single_programs_make_no_ranker(dataset):
    assert fit_ranker(dataset, np.arange(127 * 8), 0) is None
    assert fit_ranker(dataset, np.arange(0, 400 * 8, 8), 0) is None


def test_a_pooled_program_does_not_depend_on_its_neighbours(dataset):
    table, a100, t4 = dataset.asts.take(np.arange(12)), get("a100"), get("t4")
    sheets = [a100, t4] * 6
    together = pooled(table, sheets)
    assert together.shape == (12, POOLED_WIDTH)
    for place in (0, 5, 11):
        np.testing.assert_allclose(pooled(table.take([place]), [sheets[place]])[0], together[place], rtol=1e-5)
    assert np.abs(pooled(table, [a100] * 12) - together).max() > 0
