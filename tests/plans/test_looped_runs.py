"""Real steps under schedules with several stages a rank, whose figures are kept, beside their replays."""

from __future__ import annotations

import numpy as np

from benchmarks.plans.looped import figures, tables
from benchmarks.plans.looped_runs import CASES, FILE
from cdmpp.platform.files import read_json


def test_steps_of_real_schedules_are_within_bounds():
    """Nothing is fitted to a step: replays are too fast, none by a quarter."""
    found = figures(read_json(FILE)["ranks"])
    off = np.array([predicted_s / step_s - 1 for *_, step_s, predicted_s in found])
    assert len(found) == len(CASES) == 12
    assert np.abs(off).mean() < 0.12 and off.min() > -0.25 and off.max() < 0.05
    assert len({name for name, *_ in found}) == 5


def test_the_table_has_a_row_a_case(tmp_path):
    (table,) = tables(tmp_path)
    assert len(table["rows"]) == len(CASES) and all(len(row) == len(table["columns"]) for row in table["rows"])
