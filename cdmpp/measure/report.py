"""Report of what a collection holds so far: counts, failures by cause, how far repeated visits differ."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.data.records import read_records
from cdmpp.data.statistics import noise_floor
from cdmpp.platform.files import FAILURES_FILE, read_entries


def report(folder: Path, device: str) -> dict[str, Any]:
    """Report counts, failures by cause, distribution of spreads and noise floor of the records of ``device``."""
    records = read_records(folder, device)
    failures = read_entries(folder / FAILURES_FILE, device)
    causes = collections.Counter(entry["cause"] for entry in failures)
    spread = [record.spread for record in records] or [0.0]
    latency = [record.latency_s for record in records] or [1.0]
    return {
        "programs": len(records),
        "tasks": len({record.task_id for record in records}),
        "failures": dict(causes),
        "spread_median": float(np.median(spread)),
        "spread_mean": float(np.mean(spread)),
        "spread_p90": float(np.quantile(spread, 0.9)),
        "flagged_share": float(np.mean([record.flagged for record in records] or [False])),
        "latency_p10_p50_p90_s": [float(value) for value in np.quantile(latency, (0.1, 0.5, 0.9))],
        "noise_floor": repeat_report(folder, device),
    }


def repeat_report(folder: Path, device: str) -> dict[str, Any]:
    """Report |again / first - 1| of programs measured again; ``programs`` is 0 where there is none."""
    floor = noise_floor(folder, device)
    return {"programs": 0} if floor is None else vars(floor)
