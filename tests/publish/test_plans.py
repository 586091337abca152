"""Sections of docs/results/plans.md: put in order, each in place of its older self."""

from __future__ import annotations

import benchmarks.plans.__main__ as page


def test_a_section_replaces_its_older_self_and_keeps_the_others(monkeypatch):
    monkeypatch.setattr(page, "SECTIONS", ("first", "second"))
    old = [{"section": "first", "title": "a"}, {"section": "second", "title": "b"}]
    assert page.put(old, "first", [{"title": "c"}, {"title": "d"}]) == [
        {"section": "first", "title": "c"},
        {"section": "first", "title": "d"},
        {"section": "second", "title": "b"},
    ]
    assert page.put([old[1]], "first", [{"title": "c"}])[0]["title"] == "c"
