"""Prediction: the answer, with what is known of its errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cdmpp.devices import Device
from cdmpp.errors import CdmppError


@dataclass(frozen=True)
class Prediction:
    """A prediction holds the latencies of n programs on one device."""

    latency_s: np.ndarray
    """(n,) float64, seconds."""
    labels: tuple[str, ...]
    """(n,) what each program is called: its name, record id or database line, else its number."""
    sheet: Device
    """The device as the model knows it, or as it was described."""
    trained_on_device: bool
    """False: the model goes by the device's description, unless it was ``calibrated``."""
    member_spread: np.ndarray
    """(n,) standard deviation of log-latency between the model's members; zeros with one member."""
    intervals: Mapping[float, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """(n,) lower and upper bounds in seconds by level, NaN for programs of which nothing is known (``interval``);
    empty where not calibrated."""
    described: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """Number of the device that is known as a range -> (n,) seconds at its low and at its high end."""
    novelty: np.ndarray | None = None
    """(n,) share of the validation programs that were nearer to the training programs; None if not calibrated."""
    unlike_training: np.ndarray | None = None
    """(n,) bool, farther from them than 99 % of the validation programs; None if not calibrated."""
    promised: Mapping[float, float] = field(default_factory=dict)
    """Level of each of ``intervals`` -> the coverage that it can promise: less where few tasks vouch for it."""
    flags: tuple[tuple[str, ...], ...] = ()
    """(n,) what to know before trusting each, names in ``flags.FLAGS``; empty where nothing speaks against it."""
    calibrated: bool = False
    """The model was scaled to the device by a few of its kernels (``cdmpp model calibrate``)."""
    expected: str = ""
    """The error to expect on a device that was not trained on, in a sentence; empty where that is not known."""
    refused: tuple[str, ...] = ()
    """Programs that were left out, lines of a database say, each with the reason."""
    reasons: Mapping[int, str] = field(default_factory=dict)
    """Program -> why it has no machine code, where that is known."""

    def __post_init__(self) -> None:
        if not self.flags:
            object.__setattr__(self, "flags", ((),) * len(self))
        whole = self.latency_s + self.member_spread
        for low, high in self.intervals.values():
            whole = whole + low + high
        if self.novelty is not None:
            whole = whole + self.novelty
        if np.isfinite(whole).all() and (self.latency_s > 0).all():  # no term is anything else then
            return
        columns = [self.latency_s, self.member_spread]
        for pair in self.intervals.values():
            known = ~np.isnan(pair[0])
            columns += [np.where(known, bound, self.latency_s) for bound in pair]
        numbers = np.stack(columns if self.novelty is None else [*columns, self.novelty])
        bad = np.flatnonzero(~(np.isfinite(numbers).all(0) & (self.latency_s > 0)))
        if len(bad):
            raise CdmppError(
                f"no number comes out for {len(bad)} of {len(self)} programs, the first is {self.labels[bad[0]]}: "
                "the model's weights or the vectors of these programs cannot be right"
            )

    @property
    def device(self) -> str:
        """This is the name of the device."""
        return self.sheet.name

    def part(self, begin: int, end: int) -> Prediction:
        """Return the prediction of the programs from ``begin`` up to ``end``, which is not among them."""
        own = slice(begin, end)

        def pairs(of: Mapping[Any, tuple[np.ndarray, np.ndarray]]) -> dict[Any, tuple[np.ndarray, np.ndarray]]:
            return {key: (low[own], high[own]) for key, (low, high) in of.items()}

        return replace(
            self,
            latency_s=self.latency_s[own],
            labels=self.labels[own],
            member_spread=self.member_spread[own],
            intervals=pairs(self.intervals),
            described=pairs(self.described),
            novelty=None if self.novelty is None else self.novelty[own],
            unlike_training=None if self.unlike_training is None else self.unlike_training[own],
            flags=self.flags[own],
            reasons={row - begin: why for row, why in self.reasons.items() if begin <= row < end},
        )

    def interval(self, i: int) -> dict[float, tuple[float, float]]:
        """Return bounds of program ``i`` in seconds by level; empty where nothing is known of its error."""
        bounds = {level: (float(low[i]), float(high[i])) for level, (low, high) in self.intervals.items()}
        return {level: pair for level, pair in bounds.items() if not math.isnan(pair[0])}

    def __len__(self) -> int:
        return len(self.latency_s)
