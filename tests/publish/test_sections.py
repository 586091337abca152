"""Sections of a page of results: put in order, each in place of its older self."""

from __future__ import annotations

import pytest

from benchmarks.publish.sections import put, run


def test_a_section_replaces_its_older_self_and_keeps_the_others():
    sections = ("first", "second")
    old = [{"section": "first", "title": "a"}, {"section": "second", "title": "b"}]
    assert put(old, "first", [{"title": "c"}, {"title": "d"}], sections) == [
        {"section": "first", "title": "c"},
        {"section": "first", "title": "d"},
        {"section": "second", "title": "b"},
    ]
    assert put([old[1]], "first", [{"title": "c"}], sections)[0]["title"] == "c"


def test_an_unknown_section_is_refused(capsys):
    with pytest.raises(SystemExit):
        run("benchmarks.plans", {"plans": ("alpa",)}, "", ["sailer", "--data", "."])
    assert "no section 'sailer': take some of alpa" in capsys.readouterr().err


def test_tables_of_no_section_follow():
    """``search_cost`` puts its own table on the page of plans."""
    alone = {"title": "searches"}
    found = put([alone, {"title": "a", "section": "second"}], "first", [{"title": "b"}], ("first", "second"))
    assert found == [{"title": "b", "section": "first"}, {"title": "a", "section": "second"}, alone]
