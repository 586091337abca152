"""The benchmark on measured jobs: rates of commits, knees, constants of planted runs, and what is published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.publish.measured import measured
from benchmarks.synchrony.cells import GRID, Cell, is_for_fit, steady_rate
from benchmarks.synchrony.judge_grid import judged, knee, luck
from benchmarks.synchrony.judge_loss import TARGET_LOSS, fitted, in_order, steps_to_loss
from benchmarks.synchrony.judge_policies import job_around
from benchmarks.synchrony.measure import runs
from benchmarks.synchrony.predict_runs import Batches, Constants, fit, linear_rate, predicted_rate, predicted_rates
from benchmarks.synchrony.watched import Watched, replays
from cdmpp.platform.files import read_json
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.policies import synchrony_of
from cdmpp.synchrony.worker import Worker

DOCS = Path(__file__).parents[2] / "docs"
ONE = Cell("cnn", 1, 0.2, 100.0, 1, 1)


def planted(cost_s: float = 0.05) -> dict:
    """A worker's batch takes 0.1 s, a push and a pull 0.1 s each, a commit ``cost_s`` more.

    Of two workers it takes 0.2 s. One that begins right after another takes 4 ms more, a period less the quota.
    """
    alone = {"batch_s": 0.104, "spread": 0.0, "samples": 10, "parameter_bytes": 1_000_000}
    found: dict = {"link/100": {"one_way": 80.0}, "alone/cnn/0.2": alone}
    for workers in (1, 2):
        around_s = [0.1 * workers + 0.004] * workers
        found[f"grid/{workers}"] = {
            "cell": replace(ONE, workers=workers).to_dict(), "samples_per_s": workers * 10 / (0.3 + cost_s),
            "batch_s": [0.1 * workers] * workers, "commits": [10] * workers, "server_busy_s": [0.01 * workers],
            "communication_s": [10 * (0.201 + cost_s)] * workers, "seconds_s": 30.0,
            "batch_before_s": around_s, "batch_after_s": around_s,
        }  # fmt: skip
    return found


def test_constants_of_planted_runs_are_found():
    found = planted()
    constants = fit(found)
    assert constants.commit_cpu_s == pytest.approx(0.05 * 0.2)
    assert constants.slow_down == pytest.approx(0.204 / 0.104 - 1)
    assert constants.add_bytes_per_s == pytest.approx(1e9)
    for batches in Batches:  # all three say 0.1 s
        rate = predicted_rate(found, ONE, found["grid/1"], constants, batches)
        assert rate == pytest.approx(10 / 0.351, rel=1e-3)
    assert linear_rate(found, replace(ONE, workers=4)) == pytest.approx(100.0)  # the link: ten commits a second
    assert linear_rate(found, replace(ONE, workers=2)) == pytest.approx(2 * 10 / 0.3)


def test_equal_workers_without_a_spread_keep_how_they_began():
    """Two that push at the same moment share the link, two that do not have it for themselves: replays lie between."""
    found = planted(0.0)
    constants = Constants(0.0, 0.0, 1e12)
    rates = predicted_rates(found, replace(ONE, workers=2), found["grid/2"], constants, Batches.ALONE)
    assert 20 / 0.5 <= min(rates) < 0.9 * max(rates) < max(rates) <= 1.001 * 20 / 0.3


def test_a_job_that_was_measured_again_counts_with_its_mean():
    found = planted(0.0)
    found["again/2"] = {**found["grid/2"], "samples_per_s": 100.0}
    two = replace(ONE, workers=2)
    constants = Constants(0.0, 0.0, 1e12)
    assert judged(found, constants).measured[two] == pytest.approx((100 + 20 / 0.3) / 2)
    replayed, again, inside = luck(found, constants)
    assert replayed > 1 and again == pytest.approx(20.0) and inside in (0.0, 0.5)


def test_jobs_of_uneven_workers_take_batches_from_before_and_after():
    found = planted() | {f"alone/cnn/{share}": planted()["alone/cnn/0.2"] for share in ("0.28", "0.14", "0.07")}
    found |= {"link/200": {"one_way": 160.0}, "a": {"batch_s": [0.1] * 4}, "b": {"batch_s": [0.1, 0.1, 0.1, 0.3]}}
    job = job_around(found, {"between": ["a", "b"]}, Constants(0.0, 0.0, 1e9))
    assert [one.batch_s for one in job.workers] == pytest.approx([0.1, 0.1, 0.1, 0.2])
    # Periods of 5 ms, or those of which the share is 1 ms.
    assert [one.rested_s for one in job.workers] == pytest.approx([3.6e-3, 3.6e-3, 6.143e-3, 13.286e-3])


def test_the_penalty_is_that_of_the_other_policies():
    times = {0.0: {"a": 1.0, "b": 2.0, "c": 1.0}, 1.0: {"a": 2.0, "b": 4.0, "c": 9.0}}
    measured = {"a": 2.0, "b": 4.0, "c": 1.0}
    assert fitted(times, measured, ["a", "b"]) == 1.0 and fitted(times, measured, ["c"]) == 0.0
    assert in_order(times[1.0], measured) == (1, 3)


def test_a_rate_leaves_out_the_first_quarter():
    assert steady_rate([(5.0, 4), (6.0, 4), (6.5, 4), (7.0, 4)]) == pytest.approx(8.0)


def test_the_knee_is_the_last_worker_that_is_worth_it():
    cells = [replace(ONE, workers=workers) for workers in (1, 2, 3, 4)]
    assert knee(cells, dict(zip(cells, (10.0, 19.0, 24.5, 25.0), strict=True))) == 3
    assert knee(cells, dict(zip(cells, (10.0, 20.0, 30.0, 40.0), strict=True))) == 4
    assert knee(cells, dict(zip(cells, (10.0, 12.0, 30.0, 40.0), strict=True))) == 1


def test_steps_to_a_loss_lie_between_two_points():
    run = {
        "samples": [100],
        "batches": [10],
        "loss": [[0.0, 0, 2.0], [0.1, 40, TARGET_LOSS + 0.5], [0.2, 80, TARGET_LOSS - 0.5]],
    }
    assert steps_to_loss([run]) == pytest.approx(6.0)


def test_watching_changes_no_replay_and_sees_every_commit():
    job = Job((Worker(0.1, 1), Worker(0.25, 1)), 1.0)
    (watched,) = replays(job, synchrony_of("ssp:2"), 10.0, seeds=1)
    assert [len(own) for own in watched.commits] == [one.commits for one in watched.outcome.workers]
    assert {weight for own in watched.commits for _, _, weight in own} == {1.0}
    assert Watched.name == "watched"


def test_parts_of_the_grid_do_not_overlap():
    assert len(GRID) == len(set(GRID)) >= 60
    assert {cell.mbit for cell in GRID if not is_for_fit(cell)} == {50.0, 100.0, 200.0}
    names = {name.partition("/")[2] for name in runs() if name.startswith(("grid/", "again/"))}
    assert names <= {cell.name for cell in GRID}


def test_the_page_shows_the_stored_tables():
    assert measured(read_json(DOCS / "measured" / "synchrony.json")) in (DOCS / "results" / "synchrony.md").read_text()
