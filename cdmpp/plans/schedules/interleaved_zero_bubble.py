"""Interleaved zero bubble: as interleaved 1F1B, with gradients of weights where the pipeline drains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cdmpp.plans.schedules.interleaved import Interleaved1F1B
from cdmpp.plans.schedules.registry import LOOPED


@LOOPED.register
@dataclass(frozen=True)
class InterleavedZeroBubble(Interleaved1F1B):
    """With one stage a rank it is ZB-H1 (Qi and others, "Zero bubble pipeline parallelism", ICLR 2024).

    Equal stages wait for ``(p - 1) (F + B - W)`` where forward passes take F, gradients of inputs B and those of
    weights W, which is no more than B.
    """

    name = "interleavedzerobubble"
    title = "interleaved 1F1B with divided backward passes; ZB-H1 with one stage a rank"
    divides_backward = True
    least_stages = 1
    ahead: ClassVar[int] = 1
