from __future__ import annotations

import logging

import pytest

from cdmpp.platform import progress
from cdmpp.platform.progress import shown


def test_without_a_bar_a_line_now_and_then_says_how_far_it_is(caplog, monkeypatch):
    now_s = iter([0.0, 6.0, 12.0, 12.0, 18.0, 24.0, 24.0, 99.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now_s))
    with caplog.at_level(logging.INFO, "cdmpp"):
        assert list(shown(iter("abcde"), "letters", 5, False)) == [*"abcde"]
    assert caplog.messages == ["letters: 2 of 5", "letters: 4 of 5"]


@pytest.mark.parametrize("bar", [True, False])
def test_what_takes_a_moment_says_nothing(bar, caplog, capfd):
    with caplog.at_level(logging.INFO, "cdmpp"):
        assert list(shown(iter("abc"), "letters", 3, bar)) == [*"abc"]
    assert caplog.messages == []
