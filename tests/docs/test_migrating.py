"""The note on old names has all of them, each with its name of today."""

from __future__ import annotations

from pathlib import Path

import pytest

import cdmpp
from cdmpp.cli import old_names
from cdmpp.old_keywords import _FIELDS

NOTE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()
RENAMED = {
    **{f"--{old}": f"--{new}" for old, new in old_names.OPTIONS.items()},
    **old_names.SETTINGS,
    **{f"cdmpp.{old}": f"cdmpp.{new}" for old, new in cdmpp._OLD_NAMES.items()},
    **{f"--{option} {old}": f"--{option} {new}" for (option, old), new in old_names.VALUES.items()},
}


@pytest.mark.parametrize("old", RENAMED)
def test_a_renamed_thing_has_its_row(old):
    assert any(f"`{old}" in line and f"`{RENAMED[old]}" in line for line in NOTE.splitlines())


@pytest.mark.parametrize("old", old_names.VERBS)
def test_an_old_verb_has_its_row(old):
    rows = [line.split("|") for line in NOTE.splitlines() if line.startswith("| `cdmpp ")]
    assert any(f"{old}`" in row[1] and f"{old_names.VERBS[old]}`" in row[2] for row in rows)


def test_all_old_keywords_are_named():
    assert [name for name in _FIELDS if f"`{name}`" not in NOTE] == []
