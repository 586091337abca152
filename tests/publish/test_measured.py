"""Pages of tables that one command each has printed are those of their stored files."""

from __future__ import annotations

import subprocess
import sys
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


ADDS = """
import sys, time
from pathlib import Path
from benchmarks.publish.measured import change

def add(stored):
    time.sleep(0.05)  # long enough that others would read the same
    table = {"title": sys.argv[2], "note": "", "commands": [], "columns": ["a"], "rows": [["1"]]}
    return sorted([*stored, table], key=lambda one: one["title"])

change("page", add, Path(sys.argv[1]))
"""


def test_what_processes_publish_at_once_is_all_there(tmp_path):
    """Each adds a table to those that are stored; none is lost."""
    (tmp_path / "results").mkdir()
    page = tmp_path / "results" / "page.md"
    page.write_text("<!-- measured --><!-- /measured -->\n")
    adding = [subprocess.Popen([sys.executable, "-c", ADDS, str(tmp_path), title]) for title in "abcd"]
    assert [one.wait() for one in adding] == [0] * 4
    tables = read_json(tmp_path / "measured" / "page.json")
    assert [one["title"] for one in tables] == [*"abcd"]
    assert measured(tables) in page.read_text()
