"""The timeline of several ranks as Chrome's and Perfetto's trace viewers read it: a process a rank, a row a stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cdmpp.platform.files import write_atomic
from cdmpp.steps.step_replay import RankSpan


def chrome_trace(spans: Sequence[RankSpan]) -> dict[str, Any]:
    """Times in microseconds from the first span on."""
    rows = sorted({(span.rank, not span.stream.startswith("compute"), span.stream) for span in spans})
    threads = {(rank, stream): row for row, (rank, _, stream) in enumerate(rows)}
    named = [
        *(_named("process_name", rank, 0, f"rank {rank}") for rank in sorted({rank for rank, _ in threads})),
        *(_named("thread_name", rank, row, stream) for (rank, stream), row in threads.items()),
    ]
    first_s = min((span.start_s for span in spans), default=0.0)
    events = [
        {
            "ph": "X",
            "name": span.name,
            "cat": span.kind,
            "pid": span.rank,
            "tid": threads[span.rank, span.stream],
            "ts": 1e6 * (span.start_s - first_s),
            "dur": 1e6 * (span.end_s - span.start_s),
            "args": {"critical": span.is_critical},
        }
        for span in spans
    ]
    return {"traceEvents": [*named, *events], "displayTimeUnit": "ms"}


def save_trace(spans: Sequence[RankSpan], path: str | Path) -> Path:
    """Write ``chrome_trace``, whole or not at all; ``CdmppError`` where that cannot be."""
    text, path = json.dumps(chrome_trace(spans)), Path(path)
    write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return path


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
