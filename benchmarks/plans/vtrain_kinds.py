"""Kinds of block of vTrain's rows: of one width, tensor degree and micro-batch, whose times are off alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchmarks.plans.large_scores import Floats, Mask, nearest_in_order
from benchmarks.plans.vtrain_jobs import Row

Kind = tuple[int, int, int]
_DRAWN = 1.0
"""One row that was predicted right."""


@dataclass(frozen=True, eq=False)
class Kinds:
    """Rows by their kind, with seconds that were predicted without a fit."""

    rows: tuple[Row, ...]
    measured_s: Floats
    predicted_s: Floats

    @cached_property
    def places(self) -> dict[Kind, list[int]]:
        """Width, tensor degree and micro-batch -> places of rows."""
        found = dict[Kind, list[int]]()
        for place, row in enumerate(self.rows):
            found.setdefault((row.shape.hidden, row.tensor, row.micro_batch), []).append(place)
        return found

    def known(self, seen: Mask, drawn: float = _DRAWN) -> Floats:
        """Return the predicted seconds of all rows, times what the seen rows of each one's kind took by those.

        Args:
            seen: (n,) True for rows whose measured seconds may be used.
            drawn: rows as many as which a factor is drawn to 1; that of a kind that nobody saw is 1.
        """
        ratio, found = np.log(self.measured_s / self.predicted_s), self.predicted_s.copy()
        for places in self.places.values():
            own = [place for place in places if seen[place]]
            found[places] *= np.exp(ratio[own].sum() / max(len(own) + drawn, 1))
        return found

    def left_out(self, folds: Floats) -> Floats:
        """Return the same for the rows of each fold, of which those of the others are seen."""
        found = np.empty(len(folds))
        for one in np.unique(folds):
            found[folds == one] = self.known(folds != one)[folds == one]
        return found

    @cached_property
    def orderly_factors(self) -> Floats:
        """By how much the times of each kind's blocks have to change, so that none is faster for more work."""
        kinds = list(self.places)
        logs, weights = np.empty(len(kinds)), np.array([len(self.places[one]) for one in kinds], float)
        for number, kind in enumerate(kinds):
            own = [self.rows[place] for place in self.places[kind]]
            each = [
                row.step_s / (row.micro_batches + row.pipeline - 1) / (row.shape.layers / row.pipeline) for row in own
            ]
            logs[number] = np.log(np.median(each))
        pairs = [(a, b) for a, one in enumerate(kinds) for b, two in enumerate(kinds)
                 if a != b and one[1] == two[1] and one[0] <= two[0] and one[2] <= two[2]]  # fmt: skip
        order = np.zeros((len(pairs), len(kinds)))
        for row, (a, b) in enumerate(pairs):
            order[row, a], order[row, b] = 1.0, -1.0
        changes = nearest_in_order(logs, weights, order) - logs
        found = np.empty(len(self.rows))
        for number, kind in enumerate(kinds):
            found[self.places[kind]] = np.exp(changes[number])
        return found

    def block_ms(self, kind: Kind) -> float | None:
        """Milliseconds of a block in both passes of a micro-batch, from rows of one stage; None: too few differ."""
        own = [place for place in self.places[kind] if self.rows[place].pipeline == 1]
        many = np.array([[self.rows[one].micro_batches, self.rows[one].shape.layers] for one in own], float)
        if not own or len(np.unique(many[:, 0])) < 2 or len(np.unique(many[:, 1])) < 2:
            return None
        columns = np.stack([many[:, 0], many.prod(axis=1), np.ones(len(own)), many[:, 1]], axis=1)
        seconds = self.measured_s[own]
        found, *_ = np.linalg.lstsq(columns / seconds[:, np.newaxis], np.ones(len(own)), rcond=None)
        return float(1e3 * found[1])
