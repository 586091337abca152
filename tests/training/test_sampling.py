"""Samplers against plain, slow ones; distinct tasks; every obvious cluster hit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from cdmpp import devices
from cdmpp.data.batching import ProgramTensors
from cdmpp.errors import DataError
from cdmpp.model.build import build_for
from cdmpp.model.config import model_config
from cdmpp.predict.predictor import Predictor
from cdmpp.recipes.candidates import candidates
from cdmpp.training.sampling import KMEANS_STARTS, SAMPLERS, Candidates, choose_tasks, diverse_tasks, kmeans_tasks
from tests.model.test_models import SMALL
from tests.toy_data import toy_dataset


def some(n_tasks=12, each=4, width=3, seed=0):
    rng = np.random.default_rng(seed)
    n = n_tasks * each
    return Candidates(
        rng.normal(size=(n, width)),
        np.array([f"t{i % n_tasks:02d}" for i in range(n)]),
        rng.uniform(0.1, 1, n),
        {f"t{i:02d}": float(rng.integers(1, 9)) for i in range(n_tasks)},
    )


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(SAMPLERS)), st.integers(1, 12), st.integers(0, 50))
def test_k_distinct_tasks_and_the_same_again(sampler, k, seed):
    given_ = some(seed=seed)
    chosen = choose_tasks(sampler, given_, k, seed)
    assert len(set(chosen)) == k and set(chosen) <= set(given_.task_ids)
    assert choose_tasks(sampler, given_, k, seed) == chosen


@pytest.mark.parametrize(("k", "seed"), [(1, 0), (3, 0), (5, 1), (12, 2)])
def test_kmeans_is_the_published_algorithm(k, seed):
    given_ = some(seed=seed)
    clusters = KMeans(k, random_state=seed, n_init=KMEANS_STARTS).fit(given_.features)
    left, expected = sorted(set(given_.task_ids)), []
    for cluster in sorted(range(k), key=lambda c: (-(clusters.labels_ == c).sum(), c)):
        means = {}
        for task in left:
            rows = [x for x, t in zip(given_.features, given_.task_ids, strict=True) if t == task]
            means[task] = sum(np.linalg.norm(x - clusters.cluster_centers_[cluster]) for x in rows) / len(rows)
        expected.append(min(left, key=means.__getitem__))
        left.remove(expected[-1])
    assert kmeans_tasks(given_, k, seed) == expected


def test_kmeans_most_takes_tasks_that_fill_their_cluster():
    """Two groups; in each a task of one program sits on the centre, one of six around it, one has a foot in both."""
    rng = np.random.default_rng(0)
    features, tasks = [], []
    for centre, name in (([0.0, 0.0], "a"), ([9.0, 9.0], "b")):
        features += [centre, *(centre + rng.normal(0, 0.5, (6, 2))), *(centre + rng.normal(0, 0.1, (3, 2)))]
        tasks += [f"{name}-single", *[f"{name}-six"] * 6, *["both"] * 3]
    given_ = Candidates(np.array(features), np.array(tasks))
    assert set(kmeans_tasks(given_, 2, 0)) == {"a-single", "b-single"}
    assert set(choose_tasks("kmeans_most", given_, 2, 0)) == {"a-six", "b-six"}


def test_diverse_is_the_plain_greedy_choice():
    given_ = some(seed=4)
    names = sorted(set(given_.task_ids))
    place = {t: given_.features[given_.task_ids == t].mean(0) for t in names}
    mass = {t: given_.uncertainty[given_.task_ids == t].sum() * given_.weights[t] ** 0.5 for t in names}
    chosen = []
    for _ in range(6):

        def cost(task):
            return sum(
                mass[t] * min(np.linalg.norm(place[t] - place[c]) for c in [*chosen, task]) for t in names
            )  # fmt: skip

        chosen.append(min((t for t in names if t not in chosen), key=cost))
    assert diverse_tasks(given_, 6, 0) == chosen


@pytest.mark.parametrize("sampler", ["kmeans", "kmeans_most", "diverse"])
@pytest.mark.parametrize("seed", range(5))
def test_obvious_clusters_are_each_hit(sampler, seed):
    rng = np.random.default_rng(seed)
    # Four far groups of very different sizes; random choice would mostly hit the first.
    sizes = (30, 5, 3, 2)
    group = np.repeat(np.arange(4), sizes)
    centres = np.array([[0, 0], [50, 0], [0, 50], [50, 50.0]])
    features = np.repeat(centres[group], 3, axis=0) + rng.normal(size=(120, 2))
    tasks = np.repeat([f"t{i:02d}" for i in range(40)], 3)
    chosen = choose_tasks(sampler, Candidates(features, tasks), 4, seed)
    assert {group[int(task[1:])] for task in chosen} == {0, 1, 2, 3}


def test_diverse_prefers_what_the_model_is_unsure_of():
    features = np.array([[0.0], [10.0], [20.0]])
    tasks = np.array(["a", "b", "c"])
    assert diverse_tasks(Candidates(features, tasks, np.array([1.0, 1.0, 9.0])), 1, 0) == ["c"]
    assert diverse_tasks(Candidates(features, tasks, np.array([9.0, 1.0, 1.0])), 1, 0) == ["a"]
    assert diverse_tasks(Candidates(features, tasks), 1, 0) == ["b"]


def test_diverse_takes_small_tasks_last():
    features = np.array([[0.0], [0.1], [0.2], [10.0], [10.1], [5.0]])
    tasks = np.array(["a", "a", "a", "b", "b", "single"])
    assert set(diverse_tasks(Candidates(features, tasks), 2, 0)) == {"a", "b"}
    assert diverse_tasks(Candidates(features, tasks), 3, 0)[2] == "single"


def test_equal_programs_do_not_stop_it():
    same = Candidates(np.zeros((9, 2)), np.array([f"t{i % 3}" for i in range(9)]))
    for sampler in SAMPLERS:
        assert len(set(choose_tasks(sampler, same, 3, 0))) == 3


@pytest.mark.parametrize(
    ("sampler", "k", "message"),
    [("kmaens", 3, "did you mean kmeans"), ("random", 13, "12 tasks to choose from"), ("kmeans", 0, "1 to 12")],
)
def test_impossible_wishes_are_named(sampler, k, message):
    with pytest.raises(DataError, match=message):
        choose_tasks(sampler, some(), k, 0)


@pytest.fixture(scope="module")
def model_and_data():
    dataset, _ = toy_dataset(80)
    sheet = devices.get("xeon-icelake")
    programs = ProgramTensors.build(dataset.asts, {sheet.name: sheet}, dataset.devices, dataset.latency_s)
    model = build_for(model_config(SMALL), programs, np.arange(60))
    return Predictor([model], {sheet.name: sheet}), dataset


def test_candidates_need_no_label_and_follow_the_rows(model_and_data):
    predictor, dataset = model_and_data
    unlabelled = type(dataset)(**{**vars(dataset), "latency_s": np.full(80, np.nan)})
    rows, sheet = np.arange(10, 70), devices.get("xeon-icelake-avx2")
    found = candidates(predictor, unlabelled, rows, sheet)
    assert len(found.features) == 60 and np.isfinite(found.features).all()
    assert np.allclose(found.features.mean(0), 0, atol=1e-6) and np.allclose(found.features.std(0), 1)
    assert (found.uncertainty > 0).all() and set(found.weights) == set(found.task_ids)
    back = candidates(predictor, unlabelled, rows[::-1], sheet)
    assert np.allclose(back.features[::-1], found.features, atol=1e-4)
    again = candidates(predictor, unlabelled, rows, sheet)
    assert (again.uncertainty == found.uncertainty).all() and not predictor.models[0].training


def test_an_empty_pool_is_named(model_and_data):
    predictor, dataset = model_and_data
    sheet = devices.get("xeon-icelake")
    with pytest.raises(DataError, match="no program"):
        candidates(predictor, dataset, np.arange(0), sheet)
