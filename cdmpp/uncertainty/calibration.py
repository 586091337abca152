"""What a model knows of its own errors, fitted after training: prediction intervals and the out-of-range score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.uncertainty.conformal import Conformal, fit_conformal
from cdmpp.uncertainty.novelty import Novelty, ProgramSketch, fit_novelty

_CONFORMAL, _NOVELTY = "conformal.", "novelty."
LOCAL_INPUTS = 6
"""Columns of ``_scale_inputs``."""


@dataclass(frozen=True)
class Examined:
    """n programs as a model sees them: its answers, and what the answers' errors may depend on."""

    logs: np.ndarray
    """(members, n) float64 natural-log seconds."""
    sketch: ProgramSketch
    leaf_counts: np.ndarray
    """(n,)"""
    kernel_counts: np.ndarray
    """(n,)"""
    kinds: np.ndarray
    """(n,) 0 cpu, 1 gpu."""

    @property
    def log_prediction(self) -> np.ndarray:
        """(n,) mean over the members."""
        return self.logs.mean(0)


@dataclass(frozen=True)
class Calibration:
    conformal: Conformal
    novelty: Novelty

    def intervals(
        self, seen: Examined, groups: Sequence[str] | np.ndarray
    ) -> dict[float, tuple[np.ndarray, np.ndarray]]:
        """(n,) lower and (n,) upper bounds in seconds by level. ``groups`` (n,) as in ``calibrate``."""
        inputs = scale_inputs(seen, self.novelty)
        return {
            level: self.conformal.interval(seen.log_prediction, inputs, level, groups)
            for level in self.conformal.levels
        }

    def promised(self, group: str) -> dict[float, float]:
        """Level -> coverage that can really be promised to programs of ``group``: less where few tasks vouch for it."""
        return self.conformal.promised(group)

    def describe(self) -> dict[str, Any]:
        """For a model card."""
        return {
            "method": "split conformal on log-latency, tasks as the exchangeable unit, local scale",
            "calibrated_on": "the validation part, which also chose the epoch",
            "groups": self.conformal.describe(),
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """What ``restore`` needs, without ``settings``."""
        return {
            **{_CONFORMAL + name: value for name, value in self.conformal.arrays().items()},
            **{_NOVELTY + name: value for name, value in self.novelty.arrays().items()},
        }

    def settings(self) -> dict[str, Any]:
        """The rest, as plain JSON."""
        return self.conformal.settings()

    @staticmethod
    def restore(arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> Calibration:
        """Raises ``KeyError`` where a part is missing."""

        def part(prefix: str) -> dict[str, np.ndarray]:
            return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}

        return Calibration(
            Conformal.restore(part(_CONFORMAL), settings),
            Novelty.from_arrays(part(_NOVELTY)),
        )


def calibrate(
    training: Examined,
    validation: Examined,
    log_latency: np.ndarray,
    task_ids: Sequence[str] | np.ndarray,
    groups: Sequence[str] | np.ndarray,
) -> Calibration:
    """Fit both, after the weights are final; whoever changes the weights must do it again.

    Args:
        training: programs that the model learned from (a sample of them will do).
        validation: m programs that it did not, best of other tasks.
        log_latency: (m,) their measured natural-log seconds.
        task_ids: (m,)
        groups: (m,) path such as ``cpu/xeon-icelake``; see ``Conformal``.

    Raises:
        DataError: see ``fit_conformal``.
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
