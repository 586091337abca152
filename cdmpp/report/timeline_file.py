"""Timeline files, which Chrome's and Perfetto's trace viewers open."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from cdmpp.errors import CdmppError
from cdmpp.platform.files import write_text
from cdmpp.report.report import Report
from cdmpp.report.timeline import chrome_trace


def write_timeline(reports: Sequence[Report], path: Path) -> None:
    """Write the timeline of the last report that has one, whole or not at all.

    ``CdmppError`` where none has one, ``DataError`` where the file cannot be written.
    """
    timelines = [report.timeline for report in reports if report.timeline is not None]
    if not timelines:
        raise CdmppError(f"{path}: nothing of this result runs in an order, so it has no timeline")
    write_text(path, json.dumps(chrome_trace(timelines[-1])))
