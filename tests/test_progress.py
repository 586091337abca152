"""What takes long says how many, and how fast, to who asks for it; bars change nothing of what comes."""

from __future__ import annotations

import logging
import re

import pytest

from benchmarks.plans.search_cost import rows_of
from cdmpp.platform.progress import log_spent, shown


@pytest.mark.parametrize("progress", [False, True])
def test_items_come_as_they_are_and_are_counted_in_the_log(progress, caplog):
    with caplog.at_level(logging.DEBUG, "cdmpp"):
        assert [*shown((one for one in range(1200)), "replays of plans", 1200, progress)] == [*range(1200)]
    (line,) = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(r"1,200 replays of plans: \d+\.\d\d CPU seconds, \S+ a second", line)


def test_a_search_is_a_row_for_each_line_that_counts(caplog):
    """Other lines of the log are none."""
    with caplog.at_level(logging.DEBUG, "cdmpp"):
        log_spent("1,770 plans for 16 devices judged", 1770, 0.0)
    log = f"cdmpp: no batch is given: 32\ncdmpp: {caplog.records[0].getMessage()}\n"
    first, last = rows_of(log, 12.34)
    assert first[:2] == ("plans for 16 devices judged", "1,770")
    assert float(first[2]) > 0
    assert last == ("all, with imports and exports", "", "12.3")
