"""Time that NeuSight's timing of convolutions added: more for later rows of a file, on each of five devices.

All files list the same shapes in the same random order. A small convolution takes 60 to 130 us at their beginning and
0.4 to 0.8 ms at their end, a large one as much more in seconds, so that it is time of the host. No other operator of
these tables shows it.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections import defaultdict

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


class ConvolutionTimes:
    """Append every convolution, then ask what was added to each."""

    def __init__(self) -> None:
        """Begin with none."""
        self._rows: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))

    def append(self, place: int, record: Record, operator: EagerOperator) -> None:
        """Note one, which stands at ``place`` among all rows."""
        line = float(record.extra["line"])
        self._rows[record.device].extend((place, line, record.latency_s, operator.flops, operator.io_bytes))

    def added(self) -> tuple[dict[int, float], np.ndarray]:
        """Return place -> seconds that were added, where there are any; and the places to leave out, (n,) int64."""
        seconds, left_out = dict[int, float](), [np.zeros(0, np.int64)]
        for rows in self._rows.values():
            place, line, latency_s, flops, io_bytes = np.frombuffer(rows).reshape(-1, 5).T
            found, places = time_added(line, latency_s, flops, io_bytes), place.astype(np.int64)
            seconds |= dict(zip(places[found > 0].tolist(), found[found > 0].tolist(), strict=True))
            left_out.append(places[found > _MOST * latency_s])
        return seconds, np.concatenate(left_out)


def without_added(record: Record, seconds: float) -> Record:
    """Take ``seconds`` off the label; ``extra["added_s"]`` of the record says so."""
    own = record.latency_s - seconds
    extra = {**record.extra, "added_s": f"{seconds:.3e}"}
    return dataclasses.replace(
        record, latency_samples_s=(own,), latency_s=own, latency_min_s=own, latency_median_s=own, extra=extra
    )
