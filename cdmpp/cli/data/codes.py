"""``cdmpp data codes``: compile the programs of a data set, which a model then knows by their machine code."""

from __future__ import annotations

import argparse
from pathlib import Path

from cdmpp.cli.options import add_executor
from cdmpp.errors import UsageError
from cdmpp.platform.limits import PROCESSES, check_once, path


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the options of this verb."""
    verb.add_argument(
        "--path", type=path, action="append", required=True, help="folder of a data set; may be given again"
    )
    verb.add_argument("--ship", action="store_true", help="write them into the data set instead of the cache")
    verb.add_argument("--workers", type=PROCESSES, default=2, help="processes that compile (default 2)")
    add_executor(verb)
    verb.add_argument("--json", action="store_true", help="machine-readable")


def run(options: argparse.Namespace) -> None:
    """Derive the code vectors of each folder, and print how many there are."""
    folders: list[Path] = options.path
    check_once("--path", [str(folder) for folder in folders])
    if missing := [str(folder) for folder in folders if not folder.is_dir()]:
        raise UsageError(f"no such folder: {', '.join(missing)}")
    from cdmpp.cli.output import print_json
    from cdmpp.data.codes import derive_codes

    counts = {str(folder): derive_codes(folder, options.workers, ship=options.ship) for folder in folders}
    if options.json:
        print_json([{"folder": folder, "programs_with_code": count} for folder, count in counts.items()])
        return
    for folder, count in counts.items():
        print(f"{folder}: {count} programs with a code vector")
