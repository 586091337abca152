"""Alpa's Wide-ResNets: which plan is taken, and what the fits find."""

from __future__ import annotations

import pytest

from benchmarks.plans.alpa_latency import (
    calibrated,
    measured_s,
    one_after_the_other_s,
    precedence,
    recomputing,
    say,
    source,
)
from benchmarks.plans.alpa_rows import Row
from cdmpp.plans.calibration import Calibration
from cdmpp.plans.degrees import ParallelDegrees


def test_the_fastest_plan_that_fits_or_the_one_that_holds_least():
    plans = {"fast": (1.0, 30.0), "fits": (3.0, 9.0), "fits and is slow": (4.0, 2.0), "holds less": (2.0, 20.0)}
    keys = {name: precedence(step_s, held, 10.0) for name, (step_s, held) in plans.items()}
    assert min(keys, key=keys.__getitem__) == "fits"
    del keys["fits"], keys["fits and is slow"]
    assert min(keys, key=keys.__getitem__) == "holds less"
    assert precedence(1.0, 30.0, float("inf")) < precedence(3.0, 9.0, float("inf"))


def test_stages_one_after_the_other():
    row = Row("e2e", 1, "inter_only", 0.0, 0.0, 8.3, False)
    ops = source(1).work(64, ParallelDegrees()).rank.ops
    forward_s, backward_s = (sum(op.duration_s for op in ops if op.phase == phase) for phase in ("forward", "backward"))
    assert one_after_the_other_s(row, Calibration(compute=2.0)) == pytest.approx(
        24 * 2.0 * (2 * forward_s + backward_s), rel=1e-6
    )


def test_a_fit_finds_the_factor_of_one_gpu():
    ops = source(1).work(32, ParallelDegrees()).rank.ops
    alone_s = sum(op.duration_s for op in ops)
    row = Row("intra-op-ablation", 1, "data_parallel", 0.0, 3.0 * alone_s, 8.3, False)
    found = calibrated((row,))
    assert found.compute == pytest.approx(3.0, rel=0.02)
    assert not found.holds_between_nodes


def test_what_runs_the_forward_pass_again_has_a_factor_of_its_own():
    alone_s = sum(op.duration_s for op in source(1).work(32, ParallelDegrees()).rank.ops)
    rows = (
        Row("intra-op-ablation", 1, "data_parallel", 0.0, 3.0 * alone_s, 8.3, False),
        Row("e2e", 1, "auto", 0.0, 0.0, 4.0, False),
        Row("e2e", 16, "auto", 0.0, 0.0, 1.0, False),
    )
    found = calibrated(rows)
    assert say(rows[1], found, recomputing(rows)).step_s == pytest.approx(measured_s(rows[1]))
    assert say(rows[0], found, recomputing(rows)) == say(rows[0], found)
