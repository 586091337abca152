"""The words that say which program runs, and the intervals of whole networks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cdmpp.errors import CdmppError
from cdmpp.network.compiled.rule import ScheduleRule
from cdmpp.network.interval import NetworkErrors


@pytest.mark.parametrize("text", ["best_of:1", "best_of:256", "untuned", "database:some/where"])
def test_what_is_written_is_read(text):
    assert str(ScheduleRule.parse(text)) == text


@pytest.mark.parametrize("text", ["", "best_of", "best_of:0", "best_of:-3", "best_of:5000", "untuned:1", "database:"])
def test_anything_else_is_refused_with_what_there_is(text):
    with pytest.raises(CdmppError, match="best_of:K .* untuned .* database:DIR"):
        ScheduleRule.parse(text)


def test_few_are_compiled():
    assert [ScheduleRule.parse(f"best_of:{n}").precise for n in (1, 3, 16, 256)] == [1, 3, 4, 16]
    assert ScheduleRule.parse("database:x").folder == Path("x")


def test_an_interval_is_as_wide_as_the_errors_on_other_networks():
    errors = NetworkErrors({f"n{i}": error for i, error in enumerate([0.1, -0.2, 0.05, -0.3])})
    assert errors.factor(0.8) == pytest.approx(math.exp(0.3)), "the fourth of four"
    assert errors.factor(0.5) == pytest.approx(math.exp(0.2)), "the third smallest"
    assert errors.factor(0.9) is None
    bounds, told = errors.intervals(2.0, {})
    assert bounds == {0.8: pytest.approx((2 / math.exp(0.3), 2 * math.exp(0.3)))} and "4 networks" in told


def test_kernels_without_machine_code_keep_their_own_intervals():
    errors = NetworkErrors({f"n{i}": error for i, error in enumerate([0.1, -0.2, 0.05, -0.3])})
    bounds, told = errors.intervals(2.0, {0.8: (0.1, 9.0)}, 0.5, {0.8: (0.25, 4.0)})
    assert bounds == {0.8: pytest.approx((1.5 / math.exp(0.3) + 0.25, 1.5 * math.exp(0.3) + 4))}
    assert "without machine code" in told
    assert errors.intervals(2.0, {}, 0.5, {})[0] == {}, "nothing is known of such kernels"


def test_without_measured_networks_the_kernels_intervals_are_added():
    bounds, told = NetworkErrors({}).intervals(2.0, {0.8: (1.0, 3.0)})
    assert bounds == {0.8: (1.0, 3.0)} and "added up" in told
    assert NetworkErrors({}).intervals(2.0, {})[0] == {}
