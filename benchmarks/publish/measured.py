"""Tables that one command each has printed: kept in ``docs/measured`` as JSON, shown on pages of ``docs/results``.

``python -m benchmarks.publish.measured`` writes the part ``measured`` of each page that has a file there. A file holds
a list of tables with ``title``, ``note``, ``commands``, ``columns`` and ``rows``, all of them texts.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.publish.markdown import replace_part, table
from cdmpp.platform.files import read_json


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


def main(docs: Path) -> None:
    """Write the pages of ``docs``."""
    for path in sorted((docs / "measured").glob("*.json")):
        replace_part(docs / "results" / f"{path.stem}.md", "measured", measured(read_json(path)))


if __name__ == "__main__":
    main(Path("docs"))
