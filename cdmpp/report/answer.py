"""The JSON of an answer: that of its first report, with the others at their keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdmpp.report.report import Report


def answer_of(reports: Mapping[str, Report]) -> Any:
    """Return all numbers, as JSON takes them.

    Args:
        reports: key in the JSON -> report; the report of an empty key is the answer that the others stand in.
    """
    parts = {key: report.answer for key, report in reports.items() if key}
    return reports[""].answer | parts if parts else reports[""].answer
