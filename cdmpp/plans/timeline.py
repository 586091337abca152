"""Timeline: when the ops of a stage start without exchanges, for several micro-batches and shares of the update."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cdmpp.plans.overlap import Floats
from cdmpp.steps.launches import IntArray


@dataclass(frozen=True)
class Timeline:
    """Each array has a row an op and a column a micro-batch."""

    passes_s: Floats
    """Seconds of the ops of the passes before each op; one more row, for the end of the step."""
    updates_s: Floats
    """The same of the update, by a rank that updates all parameters."""
    pauses_s: Floats
    """Pause after each op."""

    @classmethod
    def of(cls, seconds: Floats, pauses_s: Floats, is_update: NDArray[np.bool_]) -> Timeline:
        """Add up the ``seconds`` of ops with their pauses, (ops, micro-batches)."""
        before = np.zeros((2, len(seconds) + 1, seconds.shape[1]))
        np.cumsum(np.where(is_update[:, np.newaxis], 0.0, seconds), axis=0, out=before[0, 1:])
        np.cumsum(np.where(is_update[:, np.newaxis], seconds, 0.0), axis=0, out=before[1, 1:])
        return cls(before[0], before[1], pauses_s)

    def starts_s(self, shares: Floats) -> Starts:
        """Return the starts of ops where ranks update shares of all parameters; a column a micro-batch and share."""
        return Starts(self, shares)

    def gaps_s(self, count: int) -> Gaps:
        """Return the pauses after ops, for ``count`` times all micro-batches."""
        return Gaps(self, count)


@dataclass(frozen=True)
class Starts:
    """Starts of the ops asked for."""

    timeline: Timeline
    shares: Floats

    def __getitem__(self, places: IntArray) -> Floats:
        """Return (places, shares x micro-batches) seconds."""
        own, updates_s = self.timeline.passes_s[places], self.timeline.updates_s[places]
        found: Floats = own[:, np.newaxis] + self.shares[:, np.newaxis] * updates_s[:, np.newaxis]
        return found.reshape(len(places), -1)


@dataclass(frozen=True)
class Gaps:
    """Pauses after the ops asked for."""

    timeline: Timeline
    count: int

    def __getitem__(self, places: IntArray) -> Floats:
        """Return (places, count x micro-batches) seconds."""
        return np.tile(self.timeline.pauses_s[places], self.count)
