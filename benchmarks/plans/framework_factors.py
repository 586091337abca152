"""A few factors that carry over from measured steps of large jobs to others, and their fit.

Each stands for one thing that no datasheet tells, and has a value before anything was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from cdmpp.plans.framework_host import FrameworkHost

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Factors:
    """Factors of one framework on one cluster: those of the product's calibration, and its framework's host."""

    compute: float = 1.0
    """Seconds of kernels by predicted ones."""
    dispatch: float = 1.0
    unhidden: float = 0.1
    inside: float = 0.8
    """Share of the links' bandwidth inside a node that exchanges reach."""
    between: float = 0.8
    """The same between nodes."""
    collective_s: float = 5e-5
    check_s: float = 0.0
    message_s: float = 2e-4
    far_message_s: float = 1e-3
    step_s: float = 1e-3
    stall_s: float = 1e-3
    """Seconds of each slot of a pipeline, where a cluster has such a fault."""

    @property
    def host(self) -> FrameworkHost:
        """Return the framework's host."""
        return FrameworkHost(**{name: getattr(self, name) for name in FrameworkHost.LIMITS})

    @classmethod
    def as_declared(cls, host: FrameworkHost) -> Factors:
        """Return those of a user who fits nothing: the framework's host as declared, kernels and links as predicted."""
        return cls(inside=1.0, between=1.0, **{name: getattr(host, name) for name in FrameworkHost.LIMITS})


_DOUBT = {
    "compute": 0.2, "dispatch": 0.5, "unhidden": 1.0, "inside": 0.5, "between": 0.5, "collective_s": 1.0,
    "message_s": 1.0, "far_message_s": 2.0, "step_s": 1.0, "stall_s": 3.0,
}  # fmt: skip
"""Standard deviation of the logarithm of each factor before anything was measured."""
_FAR, _WEIGHT = 0.05, 0.06
"""Relative error beyond which a row counts less than its square; weight of the factors' own values against all rows."""
_MOST_STEPS, _STEP = 5, 0.01
"""Steps of a fit: further ones change no factor by a few per cent; relative difference that tells a slope."""


def fitted(
    predicted_s: Callable[[Factors], Floats],
    measured_s: Floats,
    names: Sequence[str],
    start: Factors = Factors(),  # noqa: B008
) -> Factors:
    """Fit factors to measured steps: relative errors, far ones with less weight.

    Args:
        predicted_s: factors -> (n,) seconds of the steps that may be seen.
        measured_s: (n,) of these.
        names: those of the factors that are fitted; the others keep their values.
        start: values before the fit, which those that no step tells keep.
    """
    before = np.log([getattr(start, name) for name in names])
    doubts = np.array([_DOUBT[name] for name in names])

    def factors(logs: Floats) -> Factors:
        found = replace(start, **dict(zip(names, np.exp(logs).tolist(), strict=True)))
        return replace(found, unhidden=min(found.unhidden, 1.0))

    def off(logs: Floats) -> Floats:
        error = np.log(predicted_s(factors(logs)) / measured_s)
        near = np.sign(error) * _FAR * np.sqrt(np.sqrt(1 + (error / _FAR) ** 2) - 1)
        kept = _WEIGHT * _FAR * np.sqrt(len(measured_s)) * (logs - before) / doubts
        return np.concatenate([near, kept])

    return factors(least_squares(off, before, diff_step=_STEP, x_scale=doubts, max_nfev=_MOST_STEPS).x)


def text_of(factors: Factors, names: Sequence[str]) -> str:
    """Write the fitted ones for a reader."""
    return ", ".join(f"{name} {getattr(factors, name):.3g}" for name in names)
