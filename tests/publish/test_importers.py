"""The page of the importers is that of the results that are kept, and nothing in them is wrong and answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("tvm")
pytestmark = pytest.mark.tvm

from benchmarks.importers.page import PAGE, RESULTS, page_of  # noqa: E402
from cdmpp.programs.known_faults import known_faults  # noqa: E402

RESULTS_OF_TRIALS = json.loads(RESULTS.read_text(encoding="utf-8"))


def test_the_page_shows_the_results():
    page = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")
    assert page == "\n".join(page_of(RESULTS_OF_TRIALS)).rstrip("\n") + "\n"


@pytest.mark.parametrize("source", ["onnx", "torch"])
def test_nothing_wrong_is_answered(source):
    found = RESULTS_OF_TRIALS["sources"][source]
    assert found["settings"]["right"] > 100 and "open" not in found["settings"]
    assert not any("open" in counts for counts in found["operators"].values())


@pytest.mark.parametrize("fault", [one for one in known_faults() if not one.same_work])
def test_what_the_table_refuses_was_refused(fault):
    assert RESULTS_OF_TRIALS["sources"][fault.source]["operators"][fault.operator]["refused here"]
