"""Synchrony: which exchanges an update waits for. The protocol that every kind of synchronisation follows."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cdmpp.platform.limits import Limits, check_fields


@dataclass(frozen=True)
class Synchrony(ABC):
    """It limits how far ranks run ahead of their exchanges. A subclass is one file of ``cdmpp/plans/synchrony``."""

    LIMITS: ClassVar[Mapping[str, Limits]] = {}
    """Name of a field that holds numbers -> what they may be."""
    name: ClassVar[str]
    """The name in files and on the command line."""
    title: ClassVar[str]
    """A few words for a reader."""

    def __post_init__(self) -> None:
        check_fields(self, f"{self.name}.")

    def awaited_step(self, step: int) -> int | None:
        """Return the step whose exchanges must have ended before ``step`` updates; None: it waits for none."""
        return step
