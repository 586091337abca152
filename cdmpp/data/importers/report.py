"""Report of what an import met and wrote, in words and numbers; it decides whether the import may go on."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError, some

log = logging.getLogger(__name__)


def check_on_bad(on_bad: str) -> None:
    """Raise ``DataError`` for what is no way to deal with broken lines."""
    if on_bad not in ("error", "skip"):
        raise DataError(f"on_bad is {on_bad!r}: choose error or skip")


@dataclass
class ImportReport:
    """An import met and wrote these counts."""

    lines: int = 0
    failed: int = 0  # lines whose program did not build or run when it was tuned
    unmeasured: int = 0  # lines with a schedule that nobody has run yet
    bad: list[Any] = field(default_factory=list)
    """Broken lines, and those whose workload cannot be used: of a database ``BadLine``, of other files texts that name
    file and line."""
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
        """Name the broken lines by number, those of a database with the same reason together."""
        numbers: dict[str, list[str]] = {}
        for line in self.bad:
            if isinstance(line, str):
                return some(self.bad)
            numbers.setdefault(line.reason, []).append(str(line.number))
        reasons = numbers.items()
        return some([f"line{'s' if len(lines) > 1 else ''} {some(lines, ', ')}: {reason}" for reason, lines in reasons])

    def judge(self, source: Path, on_bad: str, programs: int) -> None:
        """Raise ``DataError`` before writing: for broken lines, unless skipped, and where there is nothing.

        ``programs`` are those that can be written.
        """
        if self.bad and on_bad == "error":
            raise DataError(
                f"{source} has {len(self.bad)} broken lines, nothing was imported: {self.bad_lines()}. "
                "Mend them, or pass on_bad=skip to leave them out"
            )
        if self.bad:
            log.warning("%s: left out %d broken lines: %s", source, len(self.bad), self.bad_lines())
        if not programs:
            raise DataError(
                f"{source} has no successful measurement: {self.lines} lines, {self.failed} failed, "
                f"{self.unmeasured} not measured yet, {len(self.bad)} broken"
            )
