"""What an import met and wrote, in words and numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cdmpp.errors import some


@dataclass
class ImportReport:
    """What an import met and wrote."""

    lines: int = 0
    failed: int = 0  # lines whose program did not build or run when it was tuned
    unmeasured: int = 0  # lines with a schedule that nobody has run yet
    bad: list[Any] = field(default_factory=list)
    """Broken lines, and those whose workload cannot be used: ``BadLine`` of a database, texts of feature files."""
    programs: int = 0  # distinct measured programs
    written: int = 0
    present: int = 0  # programs that the folder held already
    tasks: int = 0

    def __str__(self) -> str:
        merged = self.lines - self.failed - self.unmeasured - len(self.bad) - self.programs
        waiting = f"{self.unmeasured} not measured yet, " if self.unmeasured else ""
        return (
            f"{self.lines} lines: {self.failed} failed measurements dropped, {waiting}{len(self.bad)} broken lines, "
            f"{merged} repeats merged; {self.programs} programs of {self.tasks} tasks, {self.written} written, "
            f"{self.present} were there already"
        )

    def bad_lines(self) -> str:
        """The broken lines of a database by number, those with the same reason together."""
        numbers: dict[str, list[str]] = {}
        for line in self.bad:
            numbers.setdefault(line.reason, []).append(str(line.number))
        reasons = numbers.items()
        return some([f"line{'s' if len(lines) > 1 else ''} {some(lines, ', ')}: {reason}" for reason, lines in reasons])
