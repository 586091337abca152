"""Do two measurements of one program agree? Their difference is held against the noise of their own repeats.

Two labels, the lower of which is L seconds, agree where ``high / L - 1 <= tolerance * noise``. The noise is
``sqrt(a.spread**2 + b.spread**2)``, at least ``LEAST_NOISE``: two visits on one host may agree by chance much better
than two hosts of one kind do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from cdmpp.data.schema import Record
from cdmpp.units import percent, quantity

TOLERANCE = 3.0
"""Labels may differ by so many times the noise."""
LEAST_NOISE = 0.01
"""Relative. Minima over two visits to a program repeat within 0.7 % on average on a quiet CPU."""


@dataclass(frozen=True)
class Conflict:
    """Two measurements of one program on one device that disagree; ``first`` is the faster one."""

    first: Record
    second: Record
    difference: float
    """How much longer the second takes, relative to the first."""
    allowed: float
    """So much it may be."""

    def __str__(self) -> str:
        first, second = (
            f"{quantity(value, 's', 4)} by {one.host or 'an unnamed host'}"
            for value, one in zip(self.latencies_s, (self.first, self.second), strict=True)
        )
        what = f"program {self.first.record_id} of task {self.first.task_id} on {self.first.device}"
        return (
            f"{what}: {first} and {second}, "
            f"{percent(self.difference)} apart where their repeats allow {percent(self.allowed)}"
        )

    @property
    def latencies_s(self) -> tuple[float, float]:
        """Return the two values that were compared, in seconds."""
        return _label(self.first, self.second), _label(self.second, self.first)


def conflicts(records: Iterable[Record], tolerance: float = TOLERANCE) -> list[Conflict]:
    """List the pairs of ``records`` of one program on one device that disagree, in an order of their content."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.device, record.record_id), []).append(record)
    found = []
    for _, group in sorted(groups.items(), key=lambda item: item[0]):
        if len(group) > 1:
            pairs = combinations(_distinct(group), 2)
            found += [one for a, b in pairs if (one := compared(a, b, tolerance)) is not None]
    return found


def compared(a: Record, b: Record, tolerance: float = TOLERANCE) -> Conflict | None:
    """Compare two measurements of one program; None where they agree."""
    first, second = sorted((a, b), key=lambda one: (_label(one, b if one is a else a), one.host, one.measured_at))
    difference = _label(second, first) / _label(first, second) - 1.0
    allowed = tolerance * max(math.hypot(a.spread, b.spread), LEAST_NOISE)
    return Conflict(first, second, difference, allowed) if difference > allowed else None


def _label(record: Record, other: Record) -> float:
    """Return what is compared, in seconds: labels of one kind, else medians, which all have that tell more."""
    if record.statistic != other.statistic and record.latency_median_s > 0 and other.latency_median_s > 0:
        return record.latency_median_s
    return record.latency_s


def _distinct(group: Sequence[Record]) -> list[Record]:
    """Return each measurement once, in an order of their content."""
    first = {record.latency_samples_s or (record.latency_s,): record for record in group}
    return sorted(first.values(), key=lambda record: (record.latency_s, record.host, record.measured_at))
