"""Judge the oracle of plans on public figures: prints the tables of all sections, or of some.

python -m benchmarks.plans --data FOLDER                       # FOLDER holds paradl/, alpa-osdi22/ and others
python -m benchmarks.plans paradl --data FOLDER --publish      # puts them into docs/measured/plans.json and its page

The public figures are not part of this repository; each section says in its first lines where they come from.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.plans import SECTIONS
from benchmarks.publish.markdown import replace_part
from benchmarks.publish.measured import measured
from cdmpp.errors import CdmppError
from cdmpp.platform.files import read_json, write_json

DOCS = Path(__file__).parents[2] / "docs"
Table = dict[str, Any]


def put(stored: Sequence[Table], section: str, found: Sequence[Table]) -> list[Table]:
    """Put the tables of a section in place of older ones, in the order of ``SECTIONS``."""
    kept = [one for one in stored if one["section"] != section] + [{**one, "section": section} for one in found]
    return sorted(kept, key=lambda one: SECTIONS.index(one["section"]))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"some of {', '.join(SECTIONS)}; all where none is named")
    parser.add_argument("--data", type=Path, required=True, help="folder of the public figures")
    parser.add_argument("--publish", action="store_true", help="write docs/measured/plans.json and its page")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder to publish in")
    given = parser.parse_args(words)
    if unknown := [name for name in given.sections if name not in SECTIONS]:
        parser.error(f"no section {unknown[0]!r}: take some of {', '.join(SECTIONS)}")
    stored, path = [], given.docs / "measured" / "plans.json"
    if given.publish and path.is_file():
        stored = read_json(path)
    for name in given.sections or SECTIONS:
        try:
            found = importlib.import_module(f"benchmarks.plans.{name}").tables(given.data)
        except (CdmppError, OSError) as error:
            sys.exit(f"error: {name}: {error}")
        print(measured(found), end="\n\n")
        stored = put(stored, name, found)
    if given.publish:
        write_json(path, stored)
        replace_part(given.docs / "results" / "plans.md", "measured", measured(stored))
    return 0


if __name__ == "__main__":
    sys.exit(main())
