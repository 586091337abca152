"""What the import of a tuning database met and wrote, in words and numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdmpp.programs.database import BadLine

_SHOWN = 10
"""Reasons, and lines of each, in a message."""


@dataclass
class ImportReport:
    """What an import met and wrote."""

    lines: int = 0
    failed: int = 0
    """Lines whose program did not build or run when it was tuned."""
    unmeasured: int = 0
    """Lines with a schedule that nobody has run yet."""
    bad: list[BadLine] = field(default_factory=list)
    """Broken lines, and those whose workload cannot be used."""
    programs: int = 0
    """Distinct measured programs."""
    written: int = 0
    present: int = 0
    """Programs that the folder held already."""
    tasks: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        merged = self.lines - self.failed - self.unmeasured - len(self.bad) - self.programs
        waiting = f"{self.unmeasured} not measured yet, " if self.unmeasured else ""
        return (
            f"{self.lines} lines: {self.failed} failed measurements dropped, {waiting}{len(self.bad)} broken lines, "
            f"{merged} repeats merged; {self.programs} programs of {self.tasks} tasks, {self.written} written, "
            f"{self.present} were there already ({self.seconds:.1f} s)"
        )

    def bad_lines(self) -> str:
        """The broken lines by number, those with the same reason together."""
        numbers: dict[str, list[int]] = {}
        for line in self.bad:
            numbers.setdefault(line.reason, []).append(line.number)
        shown = [f"{_counted('line', lines)}: {reason}" for reason, lines in list(numbers.items())[:_SHOWN]]
        more = [f"and {len(numbers) - _SHOWN} more reasons"] if len(numbers) > _SHOWN else []
        return "; ".join([*shown, *more])


def _counted(word: str, numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return f"{word}{'s' if len(numbers) > 1 else ''} {shown}{more}"
