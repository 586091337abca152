"""Plans judged beside those of Calculon: what the tables count."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.peers.__main__ import main, rate_table
from benchmarks.peers.calculon import Calculon
from benchmarks.peers.order import Order
from benchmarks.peers.rates import Rate
from cdmpp.errors import DataError

ORDER = Order(np.array([1.0, 2.0, 3.0, 3.01]), np.array([1.0, 3.0, 2.0, 2.0]), np.array([1, 1, 1, 2]))


def test_pairs_count_where_both_see_a_difference():
    """The last two plans are as good as equal, and the second and each of them are the other way round."""
    assert ORDER.pairs() == (5, 3)
    assert ORDER.within_stages() == [(1, 3, pytest.approx(0.5))]


def test_regret_is_that_of_the_plan_that_the_other_would_take():
    assert ORDER.regret() == (1.0, 1.0)
    assert Order(np.array([2.0, 1.0]), np.array([4.0, 6.0]), np.ones(2)).regret() == (1.5, 2.0)


def test_ratios_are_to_calculon_on_the_same_kinds_of_plans_and_devices():
    found = [
        Rate(8, "Calculon, all its plans", 100, 10, 2.0, 5000),
        Rate(8, "Calculon, same kinds of plans", 100, 10, 4.0),
        Rate(8, "ours", 300, 20, 4.0),
        Rate(16, "ours", 300, 20, 4.0),
    ]
    rows = rate_table(found, "0123456789abcdef")["rows"]
    assert [row[-2:] for row in rows] == [["50", "2.00"], ["25", "1.00"], ["75", "3.00"], ["75", "–"]]
    assert rows[0][2] == "100 of 5,000"


def test_what_is_no_checkout_is_refused(tmp_path, capsys):
    with pytest.raises(DataError, match="no checkout of Calculon"):
        Calculon(tmp_path)
    with pytest.raises(SystemExit):
        main(["--publish"])
    assert "--publish and --own need --calculon" in capsys.readouterr().err
