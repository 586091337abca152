"""Metrics against values worked out by hand, and against scipy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from cdmpp.errors import DataError
from cdmpp.machine_code.cpu.code_features import CODE_NAMES, CODE_WIDTH
from cdmpp.training import metrics
from cdmpp.training.metrics import breakdown, latency_range_labels, mape_factor, score
from tests.toy_data import toy_dataset


def latency_metrics(true, predicted, tasks, weights=None):
    """Of programs on one device."""
    return metrics.latency_metrics(true, predicted, tasks, ["a100"] * len(tasks), weights)


def test_values_worked_out_by_hand():
    # Task a: errors +15 %, -50 %, 0 %; task b: +100 %, -25 %.
    true = np.array([1.0, 2.0, 4.0, 1.0, 4.0])
    predicted = np.array([1.15, 1.0, 4.0, 2.0, 3.0])
    result = latency_metrics(true, predicted, list("aaabb"), {"a": 3.0})
    assert result["mape"] == pytest.approx((15 + 50 + 0 + 100 + 25) / 5)
    assert result["median_ape"] == pytest.approx(25)
    assert result["p90_ape"] == pytest.approx(50 + 0.6 * 50)
    assert result["within_10"] == pytest.approx(20)
    assert result["within_20"] == pytest.approx(40)
    assert result["task_mape"] == pytest.approx((65 / 3 + 62.5) / 2)
    # a: predicted fastest is program 1 (2 s, best 1 s); b: predicted fastest is program 0 (1 s, the best).
    assert result["top1_regret"] == pytest.approx(np.sqrt(2 * 1))
    assert result["top8_regret"] == pytest.approx(1)
    assert result["weighted_top1_regret"] == pytest.approx((3 * 2 + 1 * 1) / (3 * 1 + 1 * 1))
    assert result["bias_at_best"] == pytest.approx((15 + 100) / 2)
    assert np.isnan(result["spearman_within_task"])  # neither task has five programs


def test_devices_do_not_compete():
    """Task a on a fast device, which the model orders exactly wrong, and ten times slower on another, ordered right."""
    fast, names = np.arange(1.0, 6.0), ["v100"] * 5 + ["a100"] * 5
    true, predicted = np.r_[10 * fast, fast], np.r_[10 * fast, fast[::-1]]
    result = metrics.latency_metrics(true, predicted, ["a"] * 10, names, {"a": 2.0})
    assert result["spearman_within_task"] == pytest.approx((1 - 1) / 2)  # of all ten in one row it would be 0.76
    assert result["top1_regret"] == pytest.approx(np.sqrt(1 * 5))  # in one row 5: the slow device is never chosen
    assert result["weighted_top1_regret"] == pytest.approx((10 + 5) / (10 + 1))
    assert result["bias_at_best"] == pytest.approx((0 + 400) / 2)
    again = breakdown(true, predicted, ["a"] * 10, names, ["all"] * 10)["all"]
    assert again["n_tasks"] == 1 and again["top1_regret"] == result["top1_regret"]


def test_the_order_of_devices_and_tasks_does_not_matter():
    rng = np.random.default_rng(2)
    tasks, names = rng.choice(list("abcde"), 300), rng.choice(["t4", "a100", "v100"], 300)
    true = rng.lognormal(size=300)
    predicted = true * rng.lognormal(0, 0.3, 300)
    weights = {"a": 3.0, "d": 7.0}
    joined = np.char.add(np.char.add(names, "/"), tasks)
    single = latency_metrics(true, predicted, joined, {key: weights.get(key[-1], 1.0) for key in joined.tolist()})
    assert metrics.latency_metrics(true, predicted, tasks, names, weights) == pytest.approx(single)


def test_no_other_factor_has_a_lower_mape():
    rng = np.random.default_rng(0)
    for n in (1, 2, 7, 200):
        true = rng.lognormal(-9, 2, n)
        predicted = true * rng.lognormal(0.1, 0.4, n)
        least = np.abs(mape_factor(true, predicted) * predicted / true - 1).mean()
        tried = [np.abs(f * predicted / true - 1).mean() for f in np.linspace(0.2, 3, 2801)]
        assert least <= min(tried) + 1e-12
    assert mape_factor(true, true) == 1.0
    assert 0.7 < mape_factor(np.ones(9999), rng.lognormal(0, 0.3, 9999)) < 0.99  # unbiased in the log is too high
    wild = np.append(np.ones(99), 1e4)  # one answer that is off by four orders of magnitude
    assert mape_factor(np.ones(100), wild) == 1.0
    assert np.isclose(mape_factor(np.ones(100), 1e3 * wild), 1e-3)


def test_top8_looks_at_eight_programs():
    true = np.arange(1.0, 13.0)
    predicted = true[::-1].copy()  # exactly wrong: the eight predicted fastest are 5..12
    result = latency_metrics(true, predicted, ["a"] * 12)
    assert result["top8_regret"] == pytest.approx(5)
    assert result["top1_regret"] == pytest.approx(12)
    assert result["spearman_within_task"] == pytest.approx(-1)


def test_spearman_is_the_mean_over_tasks_and_agrees_with_scipy():
    rng = np.random.default_rng(1)
    tasks = rng.integers(0, 7, 200)
    true = rng.integers(1, 20, 200).astype(float)  # with ties
    predicted = true * rng.integers(1, 4, 200)
    expected = np.mean([spearmanr(true[tasks == t], predicted[tasks == t]).statistic for t in range(7)])
    assert latency_metrics(true, predicted, tasks)["spearman_within_task"] == pytest.approx(expected)


def test_a_constant_prediction_gains_nothing_from_sorted_input():
    true = np.sort(np.random.default_rng(0).lognormal(size=400))
    tasks = np.repeat(np.arange(20), 20)
    result = latency_metrics(true, np.ones(400), tasks)
    assert result["spearman_within_task"] == 0
    assert result["top1_regret"] > 1.01


def test_perfect_prediction():
    true = np.array([1.0, 2, 3, 4, 5, 6])
    result = latency_metrics(true, true, ["a"] * 6)
    assert result["mape"] == result["bias_at_best"] == 0
    assert result["within_10"] == 100 and result["spearman_within_task"] == pytest.approx(1)
    assert result["top1_regret"] == result["weighted_top1_regret"] == 1


@pytest.mark.parametrize(
    ("true", "predicted", "message"),
    [
        ([], [], "empty"),
        ([1.0, 0.0], [1.0, 1.0], "1 measured"),
        ([1.0, 1.0], [1.0, np.nan], "predicted latencies are not positive numbers, the first at 1"),
        ([1.0, 1.0], [1.0], r"\(n,\)"),
    ],
)
def test_impossible_input_is_refused(true, predicted, message):
    with pytest.raises(DataError, match=message):
        latency_metrics(np.array(true), np.array(predicted), ["a"] * len(true))


def test_breakdown_by_latency_range():
    true = np.array([5e-6, 1e-5, 3e-5, 1.0])
    labels = latency_range_labels(true)
    assert [label.split(": ")[1] for label in labels] == ["under 10 us", "10 us - 20 us", "20 us - 50 us", "over 10 ms"]
    parts = breakdown(true, true * [1.1, 1.2, 1.3, 1.4], list("aabb"), ["a100"] * 4, labels)
    assert list(parts) == sorted(labels)
    assert [round(part["mape"]) for part in parts.values()] == [10, 20, 30, 40]
    assert all(part["n_programs"] == part["n_tasks"] == 1 for part in parts.values())


def test_programs_that_crowd_cache_sets_are_a_group_of_their_own():
    dataset, _ = toy_dataset(60)
    codes = np.zeros((60, CODE_WIDTH), np.float32)
    codes[:, CODE_NAMES.index("machine_cycles")] = np.log2(1 + 1000.0)
    codes[:20, CODE_NAMES.index("machine_l1_conflicts")] = np.log2(1 + 30.0)
    codes[20:40, CODE_NAMES.index("machine_l1_conflicts")] = np.log2(1 + 10.0)
    rows = np.arange(60)
    given = replace(dataset, asts=dataset.asts.with_codes(codes))
    predicted_s = dataset.latency_s * np.where(rows < 20, 1.5, 1.1)
    found = score(given, rows, predicted_s)["by_sets"]
    assert {name: (row["n_programs"], round(row["mape"])) for name, row in found.items()} == {
        "crowded": (20, 50),
        "others": (40, 10),
    }
    assert "by_sets" not in score(dataset, rows, predicted_s)
    codes[:] = np.nan
    assert "by_sets" not in score(replace(dataset, asts=dataset.asts.with_codes(codes)), rows, predicted_s)
