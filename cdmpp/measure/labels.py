"""Visits to a program <-> its record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cdmpp.data.schema import Record
from cdmpp.errors import DataError
from cdmpp.machine_code.cpu.code_vector import rounded
from cdmpp.measure.protocol import Rule, Visits


def record_of(visits: Visits, rule: Rule, marks: Mapping[str, str] | None = None, **fields: Any) -> Record:
    """Make a record whose label is the minimum over ``visits``, taken by ``rule``.

    ``marks`` join its ``extra``; ``fields`` are the other ones of ``Record``.
    """
    # No clock tells the digits that rounding takes from the samples; files are half as large without them.
    samples = np.array([value for visit in visits.samples for value in visit])
    return Record(
        latency_samples_s=tuple(rounded(samples).tolist()),
        latency_s=visits.label,
        statistic="min",
        latency_min_s=visits.label,
        latency_median_s=visits.median,
        spread=visits.spread,
        flagged=visits.flagged,
        protocol=rule.protocol_id,
        extra={
            "samples_per_visit": ",".join(str(len(visit)) for visit in visits.samples),
            "quiet_visits": ",".join(str(int(quiet)) for quiet in visits.quiet),
            **({"clock_mhz": ",".join(f"{mhz:.0f}" for mhz in visits.clock_mhz)} if visits.clock_mhz else {}),
            **(marks or {}),
        },
        **fields,
    )


def visits_of(record: Record) -> Visits:
    """Return the visits that a record's samples came from; ``DataError`` where it does not say."""
    try:
        lengths = [int(n) for n in record.extra["samples_per_visit"].split(",")]
        quiet = [bool(int(q)) for q in record.extra["quiet_visits"].split(",")]
        if sum(lengths) != len(record.latency_samples_s) or len(quiet) != len(lengths):
            raise ValueError(f"{sum(lengths)} samples named, {len(record.latency_samples_s)} held")
    except (KeyError, ValueError) as error:
        message = f"record {record.record_id} does not tell its visits apart ({error}): collect it anew"
        raise DataError(message) from error
    samples = iter(record.latency_samples_s)
    clock_mhz = [float(mhz) for mhz in record.extra.get("clock_mhz", "").split(",") if mhz]
    return Visits([tuple(next(samples) for _ in range(length)) for length in lengths], quiet, clock_mhz)
