"""A few factors that carry over from measured steps of large jobs to others, and their fit.

Each stands for one thing that no datasheet tells, and has a value before anything was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Factors:
    """Factors of one framework on one cluster."""

    compute: float = 1.0
    """Seconds of kernels by predicted ones."""
    host: float = 1.0
    """Seconds of the host by predicted ones: its processor, and what the framework runs around PyTorch."""
    unhidden: float = 0.1
    """Share of the shorter one of host and device that the longer one does not hide."""
    inside: float = 0.8
    """Share of the links' bandwidth inside a node that exchanges reach."""
    between: float = 0.8
    """The same between nodes."""
    collective_host_s: float = 5e-5
    """Seconds of the host for each exchange of ranks that divide layers."""
    message_s: float = 2e-4
    """Seconds by which a message between stages delays its receiver, beside its bytes: both hosts wait for it."""
    far_message_s: float = 1e-3
    """The same between nodes."""
    step_s: float = 1e-3
    """Seconds of a step that nothing else explains."""
    stall_s: float = 1e-3
    """Seconds of each slot of a pipeline, where a cluster has such a fault."""


_DOUBT = Factors(0.2, 0.5, 1.0, 0.5, 0.5, 1.0, 1.0, 2.0, 1.0, 3.0)
"""Standard deviation of the logarithm of each factor before anything was measured."""
_FAR, _WEIGHT = 0.05, 0.06
"""Relative error beyond which a row counts less than its square; weight of the factors' own values against all rows."""
_MOST_STEPS = 12
"""Steps of a fit: further ones change no factor by a per cent."""


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
    values = np.log([getattr(start, name) for name in names])
    doubts = np.array([getattr(_DOUBT, name) for name in names])

    def factors(logs: Floats) -> Factors:
        found = replace(start, **dict(zip(names, np.exp(logs).tolist(), strict=True)))
        return replace(found, unhidden=min(found.unhidden, 1.0))

    def off(logs: Floats) -> Floats:
        error = np.log(predicted_s(factors(logs)) / measured_s)
        near = np.sign(error) * _FAR * np.sqrt(np.sqrt(1 + (error / _FAR) ** 2) - 1)
        kept = _WEIGHT * _FAR * np.sqrt(len(measured_s)) * (logs - values) / doubts
        return np.concatenate([near, kept])

    return factors(least_squares(off, values, diff_step=1e-3, max_nfev=_MOST_STEPS).x)


def text_of(factors: Factors, names: Sequence[str]) -> str:
    """Write the fitted ones for a reader."""
    return ", ".join(f"{name} {asdict(factors)[name]:.3g}" for name in names)
