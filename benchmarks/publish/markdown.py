"""Tables and pages in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cdmpp.errors import DataError
from cdmpp.platform.files import write_atomic
from cdmpp.platform.lock import writing


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> list[str]:
    """Lines of a table; its first ``left`` columns are flush left, numbers after them flush right."""
    head, *body = (f"| {' | '.join(map(str, row))} |" for row in (headings, *rows))
    return [head, f"|{'---|' * left}{'---:|' * (len(headings) - left)}", *body]


def write_page(path: Path, lines: Iterable[str]) -> None:
    """Replace ``path``; it ends with one line break."""
    text = "\n".join(lines).rstrip("\n") + "\n"
    write_atomic(path, lambda temporary: _write(temporary, text))


def replace_part(path: Path, name: str, body: str) -> None:
    """Put ``body`` between ``<!-- name -->`` and ``<!-- /name -->`` of a page; ``DataError`` where it lacks them.

    Another process that does so in the same folder is waited for, so that the parts of both are there.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    with writing(path.parent, f"{path.name}, {name}", wait=True):
        before, found, rest = path.read_text(encoding="utf-8").partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise DataError(f"{path} lacks the marks {begin} and {end}")
        write_page(path, [f"{before}{begin}\n\n{body}\n\n{end}{after}"])


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
