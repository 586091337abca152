"""Synchrony: how far workers run ahead of each other. The protocol that every kind of synchronisation follows."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cdmpp.errors import UsageError
from cdmpp.platform.limits import Limits, check_fields
from cdmpp.steps.decisions import Decisions


@dataclass(frozen=True)
class Synchrony(ABC):
    """The settings of one kind of synchronisation. A subclass is one file of ``cdmpp/synchrony/policies``.

    A step of a plan asks ``awaited_step``; a job whose workers commit to servers asks ``decisions``. A kind answers one
    of them or both, and refuses the other.
    """

    LIMITS: ClassVar[Mapping[str, Limits]] = {}
    """Name of a field that holds numbers -> what they may be."""
    name: ClassVar[str]
    """The name in files and on the command line."""
    title: ClassVar[str]
    """A few words for a reader."""

    def __post_init__(self) -> None:
        check_fields(self, f"{self.name}.")

    def awaited_step(self, step: int) -> int | None:
        """Return the step whose exchanges must have ended before ``step`` updates; None: it waits for none.

        ``UsageError`` where the kind leaves out exchanges of a step, which a plan cannot.
        """
        raise UsageError(
            f"synchrony {self.name} decides while a job runs when to exchange, and a plan exchanges in every step: "
            f"ask `cdmpp synchrony` for it, or give a synchrony of steps, such as bsp"
        )

    def for_target(self, loss: float) -> Synchrony:
        """Return the kind as it aims at a loss; a kind that does not search for one is the same."""
        return self

    def decisions(self, workers: int) -> Decisions:
        """Return the state of a job of so many workers at its start; ``UsageError`` where it cannot have so many."""
        raise UsageError(f"synchrony {self.name} has no rules for a job of workers and servers: give one, such as bsp")
