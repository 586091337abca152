"""Synchronous: every update waits for the exchanges of its own step."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.plans.synchrony.registry import SYNCHRONIES
from cdmpp.steps.synchrony import Synchrony


@SYNCHRONIES.register
@dataclass(frozen=True)
class Synchronous(Synchrony):
    """All ranks update with the same gradients, as one device does with the whole batch."""

    name = "synchronous"
    title = "every update waits for the exchanges of its own step"
