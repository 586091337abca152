"""What the verbs of the ``cdmpp`` command print: tables, JSON, seconds in a unit that fits."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def console() -> Console:
    """Wide when written to a file or pipe, so that no column is cut there."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=220)


def print_json(value: Any) -> None:
    """Indented JSON on standard output."""
    print(json.dumps(value, indent=1))


def say(text: str) -> None:
    """One line for the user, beside the output."""
    print(f"cdmpp: {' '.join(text.split())}", file=sys.stderr)


def format_seconds(seconds: float) -> str:
    """``0.00123`` -> ``1.230 ms``: four significant digits in the unit that fits."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= factor:
            return f"{seconds / factor:#.4g} {unit}"
    return f"{seconds / 1e-9:#.4g} ns"
