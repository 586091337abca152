"""Several records of one program become one: the samples of all, each of them once."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

import numpy as np

from cdmpp.data.schema import Record

_VISITS = ("samples_per_visit", "quiet_visits", "clock_mhz")  # of ``Record.extra``: how the samples fall into visits


def merge_records(group: Sequence[Record]) -> Record:
    """Merge records of one program: all samples, the label by the first one's statistic."""
    first: dict[tuple[float, ...], Record] = {}
    for record in group:
        first.setdefault(record.latency_samples_s, record)
    group = list(first.values())  # copies count once
    if len(group) == 1:
        return group[0]
    samples = tuple(sample for record in group for sample in record.latency_samples_s)
    labels = [record.latency_s for record in group]
    best = min(record.latency_min_s or record.latency_s for record in group)
    median = statistics.median(samples or labels)
    extras = [record.extra for record in group]
    visits = {name: ",".join(e[name] for e in extras) for name in _VISITS if all(name in e for e in extras)}
    return dataclasses.replace(
        group[0],
        latency_samples_s=samples,
        latency_s=min(labels) if group[0].statistic == "min" else median,
        latency_min_s=best,
        latency_median_s=median,
        spread=float(np.std(labels) / np.mean(labels)),
        n_merged=sum(record.n_merged for record in group),
        flagged=any(record.flagged for record in group),
        extra={**{name: text for name, text in extras[0].items() if name not in _VISITS}, **visits},
    )


def each_once(records: Iterable[Record]) -> tuple[list[Record], int, int]:
    """Return (each (record id, device) once where it first stood, copies dropped, programs merged)."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.record_id, record.device), []).append(record)
    repeats = [(len(group) - 1, any(r != group[0] for r in group)) for group in groups.values()]
    copies = sum(n for n, differing in repeats if not differing)
    return [merge_records(group) for group in groups.values()], copies, sum(differing for _, differing in repeats)
