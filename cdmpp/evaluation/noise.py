"""Noise floor: how far a label moves when the same program is measured again. No model can be expected below it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cdmpp.data.schema import Record


@dataclass(frozen=True)
class NoiseFloor:
    """Repeated measurements differ by so many percent of the latency."""

    n_programs: int
    mean: float
    median: float
    p90: float


def noise_floor(records: Iterable[Record]) -> NoiseFloor | None:
    """Compare records with a repeat apart in time, by ``Record.spread``; None where no program was repeated.

    Two visits of our protocol count, and merged equal programs of an import. Repeats inside one visit share its state.
    """
    repeated = (r for r in records if r.n_merged > 1 or (r.statistic == "min" and len(r.latency_samples_s) > 1))
    percent = 100 * np.array([record.spread for record in repeated], np.float64)
    percent = percent[np.isfinite(percent)]
    if not len(percent):
        return None
    median, p90 = np.percentile(percent, [50, 90])
    return NoiseFloor(len(percent), float(percent.mean()), float(median), float(p90))
