"""Tables that one command each has printed: kept in ``docs/measured`` as JSON, shown on pages of ``docs/results``.

``python -m benchmarks.publish.measured`` writes the part ``measured`` of each page that has a file there. A file holds
a list of tables with ``title``, ``note``, ``commands``, ``columns`` and ``rows``, all of them texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.publish.markdown import replace_part, table
from cdmpp.errors import DataError
from cdmpp.platform.files import read_json, write_json
from cdmpp.platform.lock import writing

DOCS = Path(__file__).parents[2] / "docs"


def measured(tables: list[dict[str, Any]]) -> str:
    """Markdown of the tables, those of one title below one heading."""
    lines: list[str] = []
    for title, group in groupby(tables, key=lambda one: one["title"]):
        lines += [f"## {title}", ""]
        commands: list[str] = []
        for one in group:
            lines += [one["note"], ""] if one["note"] else []
            lines += [*table(one["columns"], one["rows"]), ""]
            commands += [command for command in one["commands"] if command not in commands]
        lines += ["```bash", *commands, "```", ""] if commands else []
    return "\n".join(lines).rstrip()


def change(page: str, changed: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], docs: Path = DOCS) -> None:
    """Replace the tables of a page by what ``changed`` makes of those that are stored, and write the page.

    Another process that publishes in the same folder is waited for, and what it wrote is what ``changed`` gets.

    Args:
        page: name of the page below ``docs/results``.
        changed: stored tables, none where there are none yet -> tables.
        docs: folder of the pages.
    """
    path = docs / "measured" / f"{page}.json"
    with writing(path.parent, f"tables of {page}", wait=True):
        tables = changed(read_json(path) if path.is_file() else [])
        write_json(path, tables)
        replace_part(docs / "results" / f"{page}.md", "measured", measured(tables))


def publish(page: str, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], docs: Path = DOCS) -> None:
    """Put the rows of a table in the place of those that are kept, and write its page.

    Args:
        page: name of the page below ``docs/results``.
        title: that of the table.
        columns: heads; a kept table of the title has the first of them.
        rows: texts, one a head.
        docs: folder of the pages.

    Raises:
        DataError: no table of the page has the title and the first head.
    """

    def changed(tables: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found = next((one for one in tables if one["title"] == title and one["columns"][0] == columns[0]), None)
        if found is None:
            raise DataError(f"{page}: no table {title!r} begins with the column {columns[0]!r}")
        found |= {"columns": [*columns], "rows": [[*row] for row in rows]}
        return tables

    change(page, changed, docs)


def main(docs: Path) -> None:
    """Write the pages of ``docs``."""
    for path in sorted((docs / "measured").glob("*.json")):
        replace_part(docs / "results" / f"{path.stem}.md", "measured", measured(read_json(path)))


if __name__ == "__main__":
    main(DOCS)
