"""Command of a package of benchmarks whose modules are the sections of pages of results.

A section is a module with one function ``tables(data)``: it reads the public figures below ``data``, asks the product
and returns tables as ``benchmarks.publish.measured`` keeps them.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.publish.measured import DOCS, change, measured
from cdmpp.errors import CdmppError

Table = dict[str, Any]


def put(stored: Sequence[Table], section: str, found: Sequence[Table], sections: Sequence[str]) -> list[Table]:
    """Put the tables of a section in place of older ones, in the order of ``sections``.

    Tables of no section, which others put there, follow.
    """
    kept = [one for one in stored if one.get("section") != section] + [{**one, "section": section} for one in found]
    return sorted(kept, key=lambda one: sections.index(one["section"]) if "section" in one else len(sections))


def _changed(new: Mapping[str, Sequence[Table]], sections: Sequence[str], stored: list[Table]) -> list[Table]:
    for name, found in new.items():
        stored = put(stored, name, found, sections)
    return stored


def run(package: str, pages: Mapping[str, Sequence[str]], meaning: str, words: Sequence[str] | None = None) -> int:
    """Print the tables of all sections, or of those that are named, and publish them where asked to.

    Args:
        package: of the sections, such as ``benchmarks.plans``.
        pages: name of a page below ``docs/results``, and of its tables below ``docs/measured`` -> modules that are its
            sections, in order.
        meaning: text of ``--help``.
        words: of the command line; None: those of this process.
    """
    sections = [name for own in pages.values() for name in own]
    parser = argparse.ArgumentParser(description=meaning, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"some of {', '.join(sections)}; all where none is named")
    parser.add_argument("--data", type=Path, required=True, help="folder of the public figures")
    parser.add_argument(
        "--publish", action="store_true", help=f"write docs/measured/PAGE.json and its page, of {', '.join(pages)}"
    )
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder to publish in")
    given = parser.parse_args(words)
    if unknown := [name for name in given.sections if name not in sections]:
        parser.error(f"no section {unknown[0]!r}: take some of {', '.join(sections)}")
    for page, own in pages.items():
        named, new = [name for name in given.sections or sections if name in own], dict[str, list[Table]]()
        for name in named:
            try:
                found = importlib.import_module(f"{package}.{name}").tables(given.data)
            except (CdmppError, OSError) as error:
                sys.exit(f"error: {name}: {error}")
            print(measured(found), end="\n\n")
            new[name] = found
        if given.publish and named:
            change(page, partial(_changed, new, own), given.docs)
    return 0
