"""Pages of tables that one command each has printed are those of their stored files."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.publish.measured import measured
from cdmpp.platform.files import read_json

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("path", sorted((DOCS / "measured").glob("*.json")), ids=lambda path: path.stem)
def test_page_shows_what_is_stored(path):
    tables = read_json(path)
    assert measured(tables) in (DOCS / "results" / f"{path.stem}.md").read_text()
    assert all(len(row) == len(one["columns"]) for one in tables for row in one["rows"])


def test_tables_of_one_title_share_a_heading_and_their_commands():
    one = {"title": "T", "note": "Note.", "commands": ["run"], "columns": ["a"], "rows": [["1"]]}
    text = measured([one, {**one, "note": ""}])
    assert text.count("## T") == 1 and text.count("\nrun\n") == 1 and text.count("| 1 |") == 2
