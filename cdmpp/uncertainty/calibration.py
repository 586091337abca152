"""A model's knowledge of its own errors, fitted after training: prediction intervals and the out-of-range score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cdmpp.uncertainty.conformal import Conformal, fit_conformal
from cdmpp.uncertainty.local_scale import LocalScale
from cdmpp.uncertainty.novelty import Novelty, ProgramSketch, fit_novelty

LOCAL_INPUTS = 6
"""Columns of ``scale_inputs``."""


@dataclass(frozen=True)
class Examined:
    """A model sees n programs so: its answers, and what the answers' errors may depend on."""

    logs: np.ndarray
    """(members, n) float64 natural-log seconds."""
    sketch: ProgramSketch
    leaf_counts: np.ndarray
    """(n,), as ``kernel_counts``."""
    kernel_counts: np.ndarray
    kinds: np.ndarray
    """(n,) 0 cpu, 1 gpu."""

    @cached_property
    def log_prediction(self) -> np.ndarray:
        """Return the (n,) mean over the members."""
        return self.logs.mean(0)

    @cached_property
    def spread(self) -> np.ndarray:
        """Return the (n,) standard deviation between the members; zeros with one."""
        return self.logs.std(0) if len(self.logs) > 1 else np.zeros(self.logs.shape[1])

    def take(self, rows: np.ndarray) -> Examined:
        """Select the programs at the places ``rows``."""
        sketch = ProgramSketch(self.sketch.hidden[rows], self.sketch.largest[rows], self.sketch.smallest[rows])
        counts = self.leaf_counts[rows], self.kernel_counts[rows]
        return Examined(self.logs[:, rows], sketch, *counts, self.kinds[rows])


@dataclass(frozen=True)
class Calibration:
    """Intervals and the out-of-range score fit one model's very weights."""

    conformal: Conformal
    novelty: Novelty
    without_code: Calibration | None = None
    """The same of answers without machine code, of a model that reads it; None: such answers have no interval."""

    def intervals(
        self, seen: Examined, groups: str | Sequence[str] | np.ndarray, without: np.ndarray | None = None
    ) -> dict[float, tuple[np.ndarray, np.ndarray]]:
        """Return (n,) bounds, lower and upper, in seconds by level; NaN where nothing is known of such answers.

        ``groups`` (n,) as in ``calibrate``, or the one of all; ``without`` (n,) bool: answered without the machine code
        that the model reads.
        """
        own: dict[float, tuple[np.ndarray, np.ndarray]] = {}
        if without is not None and without.any():
            nothing = np.full(len(without), np.nan)
            own = dict.fromkeys(self.conformal.levels, (nothing, nothing))
            if self.without_code is not None:
                own |= self.without_code.intervals(seen, groups)
            if without.all():
                return own
        bounds = self.conformal.intervals(seen.log_prediction, scale_inputs(seen, self.novelty), groups)
        return bounds if without is None or not own else choose(without, own, bounds)

    def scale_inputs(self, seen: Examined, without: np.ndarray) -> np.ndarray:
        """Return (n, LOCAL_INPUTS) that the size of an error may depend on; ``without`` as at ``intervals``."""
        if self.without_code is None or not without.any():
            return scale_inputs(seen, self.novelty)
        inputs = scale_inputs(seen, self.without_code.novelty)
        return inputs if without.all() else np.where(without[:, None], inputs, scale_inputs(seen, self.novelty))

    def promised(
        self, groups: str | Sequence[str] | np.ndarray, without: np.ndarray | None = None
    ) -> dict[float, float]:
        """Return by level the coverage to promise of all answers of ``groups``, some of them ``without`` code."""
        names = [groups] if isinstance(groups, str) else [str(name) for name in np.unique(np.asarray(groups))]
        promises = [self.conformal.promised(name) for name in names] if without is None or not without.all() else []
        if without is not None and without.any() and self.without_code is not None:
            promises += [self.without_code.conformal.promised(name) for name in names]
        return {level: min(one[level] for one in promises) for level in self.conformal.levels if promises}

    def doubt(self, sketch: ProgramSketch, without: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (n,) shares of validation programs nearer to the training, and (n,) True: farther than nearly all."""
        if self.without_code is not None and without.all():
            return self.without_code.doubt(sketch, ~without)
        score = self.novelty.score(sketch)
        nearer, unlike = self.novelty.share_nearer(score), self.novelty.unlike(score)
        if self.without_code is None or not without.any():
            return nearer, unlike
        other = self.without_code.novelty
        score = other.score(sketch)
        return np.where(without, other.share_nearer(score), nearer), np.where(without, other.unlike(score), unlike)

    def describe(self) -> dict[str, Any]:
        """Describe the calibration as a model card shows it."""
        told: dict[str, Any] = {
            "method": "split conformal on log-latency, tasks as the exchangeable unit, local scale",
            "calibrated_on": "the validation part, which also chose the epoch",
            "groups": self.conformal.describe(),
        }
        if self.without_code is not None:
            told["without_machine_code"] = self.without_code.conformal.describe()
        return told

    def arrays(self) -> dict[str, np.ndarray]:
        """Return every array by name but those of ``without_code``: with ``settings`` what ``restore`` needs."""
        parts = {"conformal": self.conformal, "conformal.scale": self.conformal.scale, "novelty": self.novelty}
        values = {f"{name}.{field}": value for name, part in parts.items() for field, value in vars(part).items()}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    def settings(self) -> dict[str, Any]:
        """Return the rest, as plain JSON."""
        return {"levels": list(self.conformal.levels), "groups": list(self.conformal.groups)}

    @staticmethod
    def restore(arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> Calibration:
        """Restore from ``arrays`` and ``settings`` of another one; ``TypeError`` where a part is missing."""
        parts: dict[str, dict[str, Any]] = {"conformal": {}, "conformal.scale": {}, "novelty": {}}
        for name, array in arrays.items():
            part, _, field = name.rpartition(".")
            parts[part][field] = array
        levels, groups = tuple(settings["levels"]), tuple(settings["groups"])
        scale = LocalScale(**parts["conformal.scale"])
        return Calibration(Conformal(levels, groups, **parts["conformal"], scale=scale), Novelty(**parts["novelty"]))


def calibrate(
    training: Examined,
    validation: Examined,
    log_latency: np.ndarray,
    task_ids: Sequence[str] | np.ndarray,
    groups: Sequence[str] | np.ndarray,
) -> Calibration:
    """Fit both, after the weights are final, by programs that the model learned from (or some of them) and m others.

    ``log_latency``, ``task_ids`` and ``groups`` (m,) are those of ``fit_conformal``, whose errors are raised.
    """
    novelty = fit_novelty(training.sketch, validation.sketch)
    inputs = scale_inputs(validation, novelty)
    return Calibration(fit_conformal(validation.log_prediction, log_latency, task_ids, inputs, groups), novelty)


def choose(
    rows: np.ndarray,
    chosen: Mapping[float, tuple[np.ndarray, np.ndarray]],
    others: Mapping[float, tuple[np.ndarray, np.ndarray]],
) -> dict[float, tuple[np.ndarray, np.ndarray]]:
    """Choose intervals by level: ``chosen`` at ``rows`` (n,) bool, ``others`` elsewhere; each has (n,) bounds."""
    return {
        level: (np.where(rows, chosen[level][0], low), np.where(rows, chosen[level][1], high))
        for level, (low, high) in others.items()
    }


def scale_inputs(seen: Examined, novelty: Novelty) -> np.ndarray:
    """Return (n, LOCAL_INPUTS) that the size of an error may depend on."""
    found = np.empty((len(seen.kinds), LOCAL_INPUTS))
    found[:, 0], found[:, 4], found[:, 5] = seen.log_prediction, seen.spread, seen.kinds
    found[:, 1] = np.log(np.maximum(novelty.distance(seen.sketch.hidden), 1e-3))
    found[:, 2], found[:, 3] = np.log(seen.leaf_counts), np.log(seen.kernel_counts)
    return found
