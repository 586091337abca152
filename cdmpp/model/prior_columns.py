"""PriorColumns: what the fitted priors say of programs, which no trained weight changes."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class PriorColumns(NamedTuple):
    """The priors say this of B programs with K kernels; what is padded means nothing."""

    kernels: Tensor
    """(B, K, N_BOUNDS + N_STATES) logs of the seconds that bound each kernel, and how its launch fills the device."""
    log_s: Tensor
    """(B, K) natural-log seconds of each kernel by the analytic model."""
    code: Tensor
    """(B, C) what the code prior says, zeros without a code vector; C is 0 in a model that reads no code: log-seconds
    of simulated cycles, their distance from the analytic ones, log-seconds by code, their distance, and the shares of
    the resources."""
