"""What measurements can tell: knees measured again, searches that end in two ways, orders of few seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.synchrony.cells import Cell
from benchmarks.synchrony.judge_bounds import knee_draws, within
from benchmarks.synchrony.judge_grid import Judged, budget_rows, budgets
from benchmarks.synchrony.judge_loss import in_order, left_out_pairs, sure_pairs

SERIES = [Cell("cnn", workers, 0.2, 50.0, 1, 1) for workers in (1, 2, 3, 4)]
RATES = dict(zip(SERIES, (10.0, 19.0, 24.5, 25.0), strict=True))


def twice(apart: float) -> dict:
    """All cells of a series with two runs that are ``apart`` from each other, as a part of their mean."""
    runs = {}
    for cell in SERIES:
        for prefix, side in (("grid", 1), ("again", -1)):
            rate = RATES[cell] * (1 + side * apart / 2)
            runs[f"{prefix}/{cell.name}"] = {"cell": cell.to_dict(), "samples_per_s": rate}
    return runs


def test_without_noise_a_knee_is_measured_as_it_was():
    assert not knee_draws([SERIES], RATES, twice(0.0), draws=50).any()


def test_knees_of_noisy_cells_move_as_often_as_by_hand():
    """By 2 %, the third worker brings 5.5 -+ 0.68 of the 5 that it needs: of 4 equal draws, one is below.

    24.5 x (1 -+ 0.01) - 19 x (1 -+ 0.01) is 5.065, 5.445, 5.555 or 5.935, half of the first 4.95 or 5.05; so the knee
    stays. By 6 % it is 4.195, 5.335, 5.665 or 6.805 of 4.85 or 5.15: a fourth of the draws ends before it.
    """
    assert not knee_draws([SERIES], RATES, twice(0.02), draws=200).any()
    off = knee_draws([SERIES], RATES, twice(0.06), draws=4000)
    assert np.mean(off == -1) == pytest.approx(0.25, abs=0.03) and np.mean(off == 0) == pytest.approx(0.75, abs=0.03)


def test_a_single_run_is_noisier_than_a_mean_of_two():
    runs = {name: run for name, run in twice(0.05).items() if "cnn/3" not in name}
    other = replace(SERIES[2], mbit=100.0)
    for prefix, rate in (("grid", 24.5 * 1.025), ("again", 24.5 * 0.975)):
        runs[f"{prefix}/{other.name}"] = {"cell": other.to_dict(), "samples_per_s": rate}
    runs[f"grid/{SERIES[2].name}"] = {"cell": SERIES[2].to_dict(), "samples_per_s": 24.5}
    mean, single = (np.mean(knee_draws([SERIES], RATES, one, draws=2000) != 0) for one in (twice(0.05), runs))
    assert single >= mean > 0


@pytest.mark.parametrize(
    ("counts", "jobs", "part", "share"),
    [
        ({4: 5}, 5, 0.0, 1.0),
        ({4: 4, 7: 1}, 5, 0.05, 5 * 0.2 * 0.8**4),  # 4.6 by one of five, else 4 or 5.2 and more
        ({4: 4, 7: 1}, 5, 0.14, 0.8**5 + 5 * 0.2 * 0.8**4 + 10 * 0.2**2 * 0.8**3),
        ({1: 1, 3: 1}, 1, 0.5, 1.0),
    ],
)
def test_means_of_few_jobs_lie_within_a_part_as_often_as_by_hand(counts, jobs, part, share):
    assert within(counts, jobs, part) == pytest.approx(share)


def test_pairs_are_told_apart_where_seeds_do_not_overlap():
    seeds = {"a": np.arange(5.0), "b": np.arange(10.0, 15.0), "c": np.arange(5.0) + 0.1}
    assert sure_pairs(seeds, list(seeds)) == {("a", "b"): True, ("b", "c"): False}
    assert in_order({"a": 1.0, "b": 3.0, "c": 2.0}, {"a": 1.0, "b": 3.0, "c": 0.5}) == (2, 3)
    assert left_out_pairs({"a": np.array([1.0, 1.0]), "b": np.array([2.0, 0.5])}, ["a", "b"]) == 0.0
    assert left_out_pairs({"a": np.array([1.0, 1.0]), "b": np.array([2.0, 2.5])}, ["a", "b"]) == 1.0


def test_a_budget_has_the_cells_that_fit_and_its_best_one():
    more = Cell("cnn", 2, 0.2, 50.0, 1, 2)
    measured = {**RATES, more: 30.0}
    found = Judged(measured, {"other": {**RATES, more: 1.0}})
    by_machines = {one.machines: one for one in budgets(found)}
    assert set(by_machines[3].options) == set(SERIES[:2]) and by_machines[3].best(measured) == SERIES[1]
    assert by_machines[4].best(measured) == more and by_machines[4].best(found.by["other"]) == SERIES[2]
    (row,) = budget_rows(found)
    assert row[:2] == ["other", "5"] and float(row[4]) == pytest.approx(100 * (1 - 24.5 / 30), abs=0.1)
