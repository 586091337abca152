"""Output: the answer of every model."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Output(NamedTuple):
    """A model answers so for B programs."""

    log_latency: Tensor
    """(B,) natural-log seconds."""
    label: Tensor
    """(B,) the same in the standardised units of the label transform."""
    hidden: Tensor
    """(B, H) last hidden vector of the regressor: what domain losses compare."""
