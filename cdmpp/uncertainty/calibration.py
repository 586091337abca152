"""What a model knows of its own errors, fitted after training: prediction intervals and the out-of-range score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.uncertainty.conformal import Conformal, fit_conformal
from cdmpp.uncertainty.local_scale import LocalScale
from cdmpp.uncertainty.novelty import Novelty, ProgramSketch, fit_novelty

LOCAL_INPUTS = 6
"""Columns of ``scale_inputs``."""


@dataclass(frozen=True)
class Examined:
    """n programs as a model sees them: its answers, and what the answers' errors may depend on."""

    logs: np.ndarray
    """(members, n) float64 natural-log seconds."""
    sketch: ProgramSketch
    leaf_counts: np.ndarray
    """(n,), as ``kernel_counts``."""
    kernel_counts: np.ndarray
    kinds: np.ndarray
    """(n,) 0 cpu, 1 gpu."""

    @property
    def log_prediction(self) -> np.ndarray:
        """(n,) mean over the members."""
        return self.logs.mean(0)


@dataclass(frozen=True)
class Calibration:
    """Intervals and the out-of-range score that fit one model's very weights."""

    conformal: Conformal
    novelty: Novelty

    def intervals(self, seen: Examined, groups: Sequence[str]) -> dict[float, tuple[np.ndarray, np.ndarray]]:
        """(n,) lower and (n,) upper bounds in seconds by level. ``groups`` (n,) as in ``calibrate``."""
        return self.conformal.intervals(seen.log_prediction, scale_inputs(seen, self.novelty), groups)

    def describe(self) -> dict[str, Any]:
        """For a model card."""
        return {
            "method": "split conformal on log-latency, tasks as the exchangeable unit, local scale",
            "calibrated_on": "the validation part, which also chose the epoch",
            "groups": self.conformal.describe(),
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """Every array by name: with ``settings`` what ``restore`` needs."""
        parts = {"conformal": self.conformal, "conformal.scale": self.conformal.scale, "novelty": self.novelty}
        values = {f"{name}.{field}": value for name, part in parts.items() for field, value in vars(part).items()}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    def settings(self) -> dict[str, Any]:
        """The rest, as plain JSON."""
        return {"levels": list(self.conformal.levels), "groups": list(self.conformal.groups)}

    @staticmethod
    def restore(arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> Calibration:
        """From ``arrays`` and ``settings`` of another one; ``TypeError`` where a part is missing."""
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


def scale_inputs(seen: Examined, novelty: Novelty) -> np.ndarray:
    """(n, LOCAL_INPUTS) what the size of an error may depend on."""
    distance = np.log(np.maximum(novelty.distance(seen.sketch.hidden), 1e-3))
    spread = seen.logs.std(0)
    columns = (seen.log_prediction, distance, np.log(seen.leaf_counts), np.log(seen.kernel_counts), spread, seen.kinds)
    return np.stack(columns, axis=1).astype(np.float64)
