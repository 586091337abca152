"""How far a label moves when the same program is measured again: no model can be expected below it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cdmpp.data.schema import Record


@dataclass(frozen=True)
class NoiseFloor:
    """Relative deviation of repeated measurements, percent of the latency."""

    n_programs: int
    """Programs that were measured more than once, apart in time."""
    mean: float
    median: float
    p90: float


def noise_floor(records: Iterable[Record]) -> NoiseFloor | None:
    """Over records with a repeat apart in time: two visits of our protocol, or merged equal programs of an import.

    ``Record.spread`` is the relative difference of two visits, or the relative standard deviation of merged
    programs. Repeats inside one visit follow each other at once and share its state, so they do not count. None
    where no program was measured again.
    """
    percent = 100 * np.array([record.spread for record in records if _repeated(record)], np.float64)
    percent = percent[np.isfinite(percent)]
    if not len(percent):
        return None
    median, p90 = np.percentile(percent, [50, 90])
    return NoiseFloor(len(percent), float(percent.mean()), float(median), float(p90))


def _repeated(record: Record) -> bool:
    return record.n_merged > 1 or (record.statistic == "min" and len(record.latency_samples_s) > 1)
