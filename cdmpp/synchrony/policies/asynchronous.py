"""Asynchronous: nobody waits for others."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.steps.decisions import Decisions
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.registry import SYNCHRONIES


@SYNCHRONIES.register
@dataclass(frozen=True)
class Asynchronous(Synchrony):
    """Each worker commits after each batch and pulls at once.

    Source: Recht et al., "Hogwild", 2011; Dean et al., "Large scale distributed deep networks", 2012 (Downpour).
    """

    name = "async"
    title = "no update waits for an exchange"

    def awaited_step(self, step: int) -> None:
        """Wait for none."""

    def decisions(self, workers: int) -> Decisions:
        """Decide nothing: what every worker does by default is asynchronous."""
        return Decisions(workers)
