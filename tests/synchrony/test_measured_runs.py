"""The benchmark on measured jobs: rates of commits, knees, constants of planted runs, and what is published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.publish.measured import measured
from benchmarks.synchrony.cells import GRID, Cell, is_for_fit, steady_rate
from benchmarks.synchrony.judge_grid import knee
from benchmarks.synchrony.judge_policies import steps_to_loss
from benchmarks.synchrony.measure import runs
from benchmarks.synchrony.predict_runs import Watched, fit, linear_rate, predicted_rate, replays
from cdmpp.platform.files import read_json
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.policies import synchrony_of
from cdmpp.synchrony.worker import Worker

DOCS = Path(__file__).parents[2] / "docs"
ONE = Cell("cnn", 1, 0.2, 100.0, 1, 1)


def planted(cost_s: float = 0.05) -> dict:
    """A worker's batch takes 0.1 s, a push and a pull 0.1 s each, a commit ``cost_s`` more."""
    alone = {"batch_s": 0.1, "spread": 0.0, "samples": 10, "parameter_bytes": 1_000_000}
    found: dict = {"link/100": {"one_way": 80.0}, "alone/cnn/0.2": alone}
    for workers in (1, 2):
        rate = workers * 10 / (0.3 + cost_s)
        found[f"grid/{workers}"] = {
            "cell": replace(ONE, workers=workers).to_dict(), "samples_per_s": rate,
            "batch_s": [0.1 * workers] * workers, "commits": [10] * workers, "server_busy_s": [0.01 * workers],
        }  # fmt: skip
    return found


def test_constants_of_planted_runs_are_found():
    constants = fit(planted())
    assert constants.commit_cpu_s == pytest.approx(0.05 * 0.2)
    assert constants.slow_down == pytest.approx(1.0)
    assert constants.add_bytes_per_s == pytest.approx(1e9)
    assert predicted_rate(planted(), ONE, constants, 30.0) == pytest.approx(10 / 0.351, rel=1e-3)
    assert linear_rate(planted(), replace(ONE, workers=4)) == pytest.approx(100.0)  # the link: ten commits a second
    assert linear_rate(planted(), replace(ONE, workers=2)) == pytest.approx(2 * 10 / 0.3)


def test_a_rate_leaves_out_the_first_quarter():
    assert steady_rate([(5.0, 4), (6.0, 4), (6.5, 4), (7.0, 4)]) == pytest.approx(8.0)


def test_the_knee_is_the_last_worker_that_is_worth_it():
    cells = [replace(ONE, workers=workers) for workers in (1, 2, 3, 4)]
    assert knee(cells, dict(zip(cells, (10.0, 19.0, 24.5, 25.0), strict=True))) == 3
    assert knee(cells, dict(zip(cells, (10.0, 20.0, 30.0, 40.0), strict=True))) == 4
    assert knee(cells, dict(zip(cells, (10.0, 12.0, 30.0, 40.0), strict=True))) == 1


def test_steps_to_a_loss_lie_between_two_points():
    run = {"samples": [100], "batches": [10], "loss": [[0.0, 0, 2.0], [0.1, 40, 1.5], [0.2, 80, 0.5]]}
    assert steps_to_loss([run]) == pytest.approx(6.0)


def test_watching_changes_no_replay_and_sees_every_commit():
    job = Job((Worker(0.1, 1), Worker(0.25, 1)), 1.0)
    (watched,) = replays(job, synchrony_of("ssp:2"), 10.0, seeds=1)
    assert [len(own) for own in watched.commits] == [one.commits for one in watched.outcome.workers]
    assert {weight for own in watched.commits for _, _, weight in own} == {1.0}
    assert watched.seconds_of(3.0) == pytest.approx(0.25)
    assert watched.seconds_of(1e9) == float("inf")
    assert Watched.name == "watched"


def test_parts_of_the_grid_do_not_overlap():
    assert len(GRID) == len(set(GRID)) >= 60
    assert {cell.mbit for cell in GRID if not is_for_fit(cell)} == {50.0, 100.0, 200.0}
    names = {name.partition("/")[2] for name in runs() if name.startswith(("grid/", "again/"))}
    assert names <= {cell.name for cell in GRID}


def test_the_page_shows_the_stored_tables():
    assert measured(read_json(DOCS / "measured" / "synchrony.json")) in (DOCS / "results" / "synchrony.md").read_text()
