"""The table of how well candidates are chosen: figures by hand, and its place in a page."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.publish.markdown import replace_part
from benchmarks.publish.ranking import figures, tasks_of
from cdmpp.errors import DataError
from tests.evaluation.conftest import make_data


def test_figures_of_two_tasks_by_hand():
    data = make_data(n_tasks=3, each=6).dataset
    dataset = data.take(np.arange(17))  # the third task has five programs: too few
    assert [len(own) for own in tasks_of(dataset)] == [6, 6]
    dataset.latency_s[:6], dataset.latency_s[6:12] = np.arange(1, 7), np.array([4, 2, 8, 8, 8, 8])
    sure = [0.8, 0.2, 0, 0, 0, 0]
    n, told = figures(dataset, np.array([*sure, *sure, *[0.2] * 5]))
    # Of the first the likeliest is the best, of the second it takes twice as long; one of each is enough.
    assert n == 2 and told[1:] == ["1.50", "1.00", "1.00", "1.0", "1.50"]
    assert 0.5 < float(told[0]) < 1


def test_a_part_of_a_page_is_replaced(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- one -->\nold\n<!-- /one -->\n\nafter\n")
    replace_part(page, "one", "new")
    replace_part(page, "one", "newer")
    assert page.read_text() == "before\n\n<!-- one -->\n\nnewer\n\n<!-- /one -->\n\nafter\n"


def test_a_page_without_the_place_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- one -->\nafter\n")
    with pytest.raises(DataError, match="page.md lacks the marks <!-- one -->"):
        replace_part(page, "one", "new")
    assert page.read_text() == "before\n<!-- one -->\nafter\n"
