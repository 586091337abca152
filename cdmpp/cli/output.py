"""What the verbs of the ``cdmpp`` command print: tables, JSON, seconds in a unit that fits."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from cdmpp.cli.logs import log

if TYPE_CHECKING:
    from rich.console import Console


def console() -> Console:
    """Wide when written to a file or pipe, so that no column is cut there."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=220)


def print_table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Collection[str] = (),
    caption: str | None = None,
) -> None:
    """A table whose columns ``right`` hold numbers. Short names in the first column stay whole."""
    from rich.table import Table

    table, rows = Table(title=title, caption=caption), list(rows)
    for heading in headings:
        whole = heading == headings[0] and all(len(row[0].split("\n")[0]) <= 24 for row in rows)
        side: Literal["left", "right"] = "right" if heading in right else "left"
        table.add_column(heading, justify=side, overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*row)
    console().print(table)


def print_json(value: Any) -> None:
    """Indented JSON on standard output."""
    print(json.dumps(value, indent=1))


def say(text: str) -> None:
    """One line for the user, beside the output."""
    log.info("%s", text)


def warn(text: str) -> None:
    """One line that a reader should know before trusting the output."""
    log.warning("%s", text)


def format_seconds(seconds: float) -> str:
    """``0.00123`` -> ``1.230 ms``: four significant digits in the unit that fits."""
    units = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    unit = next((unit for unit, factor in units.items() if seconds >= factor), "ns")
    return f"{seconds / units[unit]:#.4g} {unit}"
