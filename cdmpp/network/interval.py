"""Intervals of whole networks, from the errors on networks that were measured: errors of one network's kernels go together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cdmpp.data.files import read_json
from cdmpp.errors import DataError
from cdmpp.network.prediction import Bounds

LEVELS = (0.8, 0.9)
ERRORS_FILE = Path(__file__).parent / "errors.json"
"""device -> model -> schedule -> log of measured over predicted time of networks that the model was not trained on."""


@dataclass(frozen=True)
class NetworkErrors:
    """Of networks measured on one device with one kind of schedule."""

    logs: tuple[float, ...]
    """Natural log of measured over predicted seconds, one a network and batch; empty where none was measured."""
    device: str
    schedule: str

    @staticmethod
    def of(device: str, schedule: str, model: str) -> NetworkErrors:
        """Those that come with the package."""
        try:
            stored = read_json(ERRORS_FILE)
        except DataError:
            stored = {}
        return NetworkErrors(tuple(stored.get(device, {}).get(model, {}).get(schedule, ())), device, schedule)

    def intervals(self, latency_s: float, summed: Mapping[float, tuple[float, float]]) -> tuple[Bounds, str]:
        """Around ``latency_s``, and how they were made. ``summed``: ends of the kernels' intervals, to fall back on."""
        levels = {level: bounds for level in LEVELS if (bounds := self._bounds(level)) is not None}
        if levels:
            made = f"the errors on {len(self.logs)} networks that were measured on {self.device}, {self.schedule}"
            return {level: (latency_s * low, latency_s * high) for level, (low, high) in levels.items()}, made
        if not summed:
            return {}, "the model has no intervals of this device's kernels"
        made = "the kernels' intervals added up, as if all erred to the same side: wider than need be"
        return dict(summed), f"{made}. No network was measured on {self.device}, {self.schedule}"

    def _bounds(self, level: float) -> tuple[float, float] | None:
        """Split-conformal factors: with n networks the (n + 1) level-th smallest absolute error; None with too few."""
        rank = math.ceil((len(self.logs) + 1) * level)
        if not self.logs or rank > len(self.logs):
            return None
        widest = float(np.sort(np.abs(self.logs))[rank - 1])
        return math.exp(-widest), math.exp(widest)
