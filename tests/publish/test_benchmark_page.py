"""The page of benchmarks is what its stored results say, whatever the order of their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.run import document

DOCS = Path(__file__).parents[2] / "docs"
STORED = json.loads((DOCS / "benchmarks.json").read_text())


def test_page_is_that_of_stored_results():
    assert (DOCS / "results" / "benchmarks.md").read_text() == document(STORED)


def test_tables_go_by_the_names_of_results():
    """They are stored by the alphabet, and measured in another order."""
    turned, as_stored = (sorted(document(one).splitlines()) for one in (_turned(STORED), STORED))
    assert turned == as_stored  # rows may stand in another order


def _turned(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _turned(one) for name, one in reversed(value.items())}
    return [_turned(one) for one in value] if isinstance(value, list) else value
