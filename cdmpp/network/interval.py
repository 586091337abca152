"""Intervals of whole networks, from the errors on measured ones: the errors of one network's kernels go together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cdmpp.errors import DataError
from cdmpp.network.prediction import Bounds
from cdmpp.platform.files import read_json

LEVELS = (0.8, 0.9)
ERRORS_FILE = Path(__file__).parent / "errors.json"
"""Device -> model -> kind of schedule -> network -> log of measured over predicted; networks that no model has seen."""


@dataclass(frozen=True)
class NetworkErrors:
    """Networks measured on one device with one kind of schedule have these errors."""

    logs: Mapping[str, float]
    """Network -> natural log of measured over predicted seconds; empty where none was measured."""

    @staticmethod
    def of(device: str, model: str, schedule: str) -> NetworkErrors:
        """Return the errors that come with the package. ``schedule``: the kind of a ``ScheduleRule``."""
        try:
            stored = read_json(ERRORS_FILE)
        except DataError:
            stored = {}
        return NetworkErrors(stored.get(device, {}).get(model, {}).get(schedule, {}))

    def factor(self, level: float) -> float | None:
        """Return f of the interval latency / f to latency x f; None with too few networks for ``level``.

        Split-conformal: of n networks the (n + 1) level-th smallest absolute error.
        """
        rank = math.ceil(round((len(self.logs) + 1) * level, 9))
        if not self.logs or rank > len(self.logs):
            return None
        return math.exp(sorted(map(abs, self.logs.values()))[rank - 1])

    def intervals(
        self, latency_s: float, summed: Bounds, apart_s: float = 0.0, apart: Bounds | None = None
    ) -> tuple[Bounds, str]:
        """Return intervals around ``latency_s``, and how they were made; without errors, those that ``summed`` gives.

        ``apart_s``: the part of ``latency_s`` in kernels that were not answered as those of the measured networks were,
        by machine code; ``apart``: the ends of their own intervals, added up. None: there are no such kernels.
        """
        factors = {level: factor for level in LEVELS if (factor := self.factor(level)) is not None}
        if factors and apart is not None:
            made = f"the errors on {len(self.logs)} networks; kernels without machine code have their own, added up"
            rest_s, shared = latency_s - apart_s, {level: apart[level] for level in factors if level in apart}
            if shared:
                ends = {level: (rest_s / factors[level], rest_s * factors[level]) for level in shared}
                return {
                    level: (ends[level][0] + low, ends[level][1] + high) for level, (low, high) in shared.items()
                }, made
        elif factors:
            made = f"the errors on {len(self.logs)} networks of which no kernel was trained on"
            return {level: (latency_s / factor, latency_s * factor) for level, factor in factors.items()}, made
        if not summed:
            return {}, "there are none: the model has no intervals of this device's kernels"
        return summed, "the kernels' intervals added up, as if all erred to one side: too few networks were measured"
