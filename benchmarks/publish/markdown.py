"""Tables and pages in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cdmpp.data.files import write_atomic


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> list[str]:
    """Lines of a table; its first ``left`` columns are flush left, numbers after them flush right."""
    head, *body = (f"| {' | '.join(map(str, row))} |" for row in (headings, *rows))
    return [head, f"|{'---|' * left}{'---:|' * (len(headings) - left)}", *body]


def write_page(path: Path, lines: Iterable[str]) -> None:
    """Replace ``path``; it ends with one line break."""
    text = "\n".join(lines).rstrip("\n") + "\n"
    write_atomic(path, lambda temporary: _write(temporary, text))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
