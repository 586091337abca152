"""Time that NeuSight's timing of convolutions added: more for later rows of a file, on each of five devices.

All files list the same shapes in the same random order. A small convolution takes 60 to 130 us at their beginning and
0.4 to 0.8 ms at their end, a large one as much more in seconds, so that it is time of the host. No other operator of
these tables shows it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import least_squares

from cdmpp.data.schema import Record
from cdmpp.operators.operator import EagerOperator

_SMALL, _FEWEST = 0.12, 100
"""Share of a device's convolutions, those of least arithmetic, that tell what was added; fewer rows tell nothing."""
_SPREAD_S = 30e-6
"""Usual distance in seconds of small convolutions from what is fitted to them; farther ones count less."""
_MOST = 0.5
"""Share of a label that may have been added: what is left of others is noise."""
MOSTLY_ADDED = "more than half was added by the timing of earlier convolutions"


def time_added(lines: np.ndarray, latency_s: np.ndarray, flops: np.ndarray, io_bytes: np.ndarray) -> np.ndarray:
    """Return the seconds that were added to one device's convolutions, (n,), at ``lines`` (n,) of its file.

    A polynomial of second degree in the line, none at line 0, which never falls. It is fitted together with a floor and
    what arithmetic and bytes take to the smallest convolutions; zeros where these are fewer than a hundred.
    """
    small = flops <= np.quantile(flops, _SMALL)
    if small.sum() < _FEWEST:
        return np.zeros(len(lines))
    place, usual_s = lines / lines.max(), float(latency_s[small].mean())
    work = [amount / amount[small].mean() for amount in (flops, io_bytes)]
    columns = usual_s * np.stack([place, place**2, np.ones(len(lines)), *work])[:, small]
    fitted = least_squares(
        lambda numbers: (numbers @ columns - latency_s[small]) / _SPREAD_S,
        np.full(5, 0.2),
        bounds=(0.0, np.inf),
        loss="soft_l1",
    ).x
    return (fitted[0] * place + fitted[1] * place**2) * usual_s


def without_time_added(
    records: Sequence[Record], operators: Mapping[str, EagerOperator]
) -> tuple[list[Record], Counter[str]]:
    """Set the convolutions' labels right; return the records, and how many are left out for what reason.

    ``extra["added_s"]`` of a record says what was taken off.
    """
    of_device = defaultdict[str, list[int]](list)
    for place, record in enumerate(records):
        if operators[record.task_id].name == "conv2d":
            of_device[record.device].append(place)
    added = np.zeros(len(records))
    for places in of_device.values():
        rows = [(records[place], operators[records[place].task_id]) for place in places]
        added[places] = time_added(
            np.array([float(record.extra["line"]) for record, _ in rows]),
            np.array([record.latency_s for record, _ in rows]),
            np.array([operator.flops for _, operator in rows]),
            np.array([operator.io_bytes for _, operator in rows]),
        )
    kept = [
        _less(record, float(seconds)) if seconds else record
        for record, seconds in zip(records, added, strict=True)
        if seconds <= _MOST * record.latency_s
    ]
    return kept, +Counter({MOSTLY_ADDED: len(records) - len(kept)})


def _less(record: Record, seconds: float) -> Record:
    own = record.latency_s - seconds
    extra = {**record.extra, "added_s": f"{seconds:.3e}"}
    return dataclasses.replace(
        record, latency_samples_s=(own,), latency_s=own, latency_min_s=own, latency_median_s=own, extra=extra
    )
