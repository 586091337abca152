"""The noise floor counts programs measured again, and nothing else."""

from __future__ import annotations

import pytest

from cdmpp.data.schema import Record
from cdmpp.evaluation.noise import noise_floor


def record(**fields):
    values = {"latency_samples_s": (1.0, 1.0, 1.0), "latency_s": 1.0, "statistic": "median", "spread": 0.0, **fields}
    return Record("r", "t", "a100", "{}", "[]", **values)


def test_merged_programs_count_and_single_ones_do_not():
    floor = noise_floor([record(spread=0.5), record(spread=0.01, n_merged=2), record(spread=0.03, n_merged=3)])
    assert floor.n_programs == 2
    assert (floor.mean, floor.median) == (pytest.approx(2), pytest.approx(2))
    assert floor.p90 == pytest.approx(2.8)


def test_two_visits_of_our_protocol_count():
    assert noise_floor([record(statistic="min", spread=0.02)]).mean == pytest.approx(2)


def test_no_repeat_gives_no_figure():
    assert noise_floor([record()]) is None
