"""``python -m benchmarks.builds``: this commit against the baseline, row by row, to docs/results/builds.md.

``--rows NAME,NAME`` measures some rows, ``--again`` also those that were measured at these commits; without it a run
that was stopped goes on. ``--baseline REV`` and ``--now REV`` name other builds, ``--folder`` where they are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace

from benchmarks.builds.build import REPOSITORY, built, parser_of
from benchmarks.builds.page import page
from benchmarks.builds.row import ROWS, Row
from benchmarks.builds.runs import measured
from benchmarks.publish.markdown import write_page
from benchmarks.run import machine
from cdmpp.platform.files import write_json

STORED, PAGE = (REPOSITORY / "docs" / name for name in ("builds.json", "results/builds.md"))


def main() -> None:
    """Build, measure what is missing, and write the page after each row."""
    options = _options()
    names = options.rows.split(",") if options.rows else list(ROWS)
    if unknown := sorted(set(names) - set(ROWS)):
        sys.exit(f"unknown rows {', '.join(unknown)}; there are {', '.join(ROWS)}")
    builds = [built(*one, options.folder) for one in (("baseline", options.baseline), ("now", options.now))]
    stored = json.loads(STORED.read_text()) if STORED.is_file() else {"rows": {}}
    base, now = (build.commit for build in builds)
    if options.runs is not None and options.runs < 1:
        sys.exit(f"--runs {options.runs}: give 1 or more")
    if stored.get("baseline") != base:
        stored = {"rows": {}}
    stored |= {"baseline": base, "now": now, "machine": machine()}
    for place, name in enumerate(names, start=1):
        if not options.again and stored["rows"].get(name, {}).get("commit") == now:
            continue

        def say(text: str, before: str = f"{place}/{len(names)} {name}: ") -> None:
            print(before + text, file=sys.stderr, flush=True)

        stored["rows"][name] = {"commit": now, **measured(_often(ROWS[name], options.runs), builds, say)}
        write_json(STORED, stored)
        write_page(PAGE, page(stored))
    print("\n".join(page(stored)))


def _often(row: Row, runs: int | None) -> Row:
    return row if runs is None else replace(row, runs=runs)


def _options() -> argparse.Namespace:
    parser = parser_of("python -m benchmarks.builds", __doc__, "all", "that were measured at these commits")
    parser.add_argument("--runs", type=int, help="runs of each build and row (default: those of the row)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
