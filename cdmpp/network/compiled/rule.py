"""ScheduleRule: which program of each task a network runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cdmpp.errors import UsageError
from cdmpp.platform.limits import Limits

DEFAULT = "best_of:16"
SCHEDULES = Limits(1, 4096, "schedules")
"""Schedules of one kernel that may be sampled."""


@dataclass(frozen=True)
class ScheduleRule:
    """The rule is ``best_of:K``, ``untuned`` or ``database:DIR``."""

    kind: str
    """``best_of``, ``untuned`` or ``database``."""
    n: int = 0
    """Schedules that ``best_of`` samples for each task; 0 for other kinds."""
    folder: Path | None = None
    """Folder of ``database``; None for other kinds."""

    @staticmethod
    def parse(text: str) -> ScheduleRule:
        """Parse a rule; ``UsageError`` names the three forms."""
        kind, _, rest = text.partition(":")
        if kind == "untuned" and not rest:
            return ScheduleRule(kind)
        if kind == "best_of" and rest.isdecimal() and len(rest) < 10 and int(rest) in SCHEDULES:
            return ScheduleRule(kind, n=int(rest))
        if kind == "database" and rest:
            return ScheduleRule(kind, folder=Path(rest))
        raise UsageError(
            f"schedule {text!r} is unknown: use best_of:K (the best of K sampled schedules by prediction, K up to "
            f"{SCHEDULES.most}), untuned (what TVM runs untuned) or database:DIR (a MetaSchedule tuning database)"
        )

    def __str__(self) -> str:
        return {"best_of": f"best_of:{self.n}", "database": f"database:{self.folder}"}.get(self.kind, self.kind)

    @property
    def precise(self) -> int:
        """So many schedules of ``best_of``, at most, are chosen by their ASTs and compiled for a second look."""
        return min(self.n, max(4, self.n // 16))
