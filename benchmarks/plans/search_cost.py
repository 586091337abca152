"""CPU seconds of a search of plans, and what it reads, judges, bounds and replays.

    python -m benchmarks.plans.search_cost [--publish]

The commands run as a user types them, with ``--verbose``, one after the other; CPU seconds are those of the process.
"""

from __future__ import annotations

import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.publish.measured import change

TITLE = "Searches of plans: CPU seconds"
NOTE = (
    "``cdmpp -v plan NETWORK`` on a machine that others use. What one device runs is read first, then all plans are "
    "judged by closed form and the best ones replayed; of plans on more devices those are judged whose passes alone "
    "are not slower than the best plan of the same strategies. Readings and ways to divide are parts of what is "
    "judged. On stored readings of the same search 20 replays took 7.9 CPU seconds, plans on more devices 4.4 and "
    "settings 1.0; at revision 8aed130d, which priced and checked every step anew, they took 20.1, 11.1 and 5.4, for "
    "the same answer, letter by letter."
)
COLUMNS = ("command", "what", "number", "CPU seconds")
_LLAMA = (
    "hf:meta-llama/Llama-3.1-8B --device h100 --cluster dgx-h100 --gpus 64 --global-batch 512 --seq 8192 "
    "--precision bf16"
)
COMMANDS = (f"{_LLAMA} --strategies fsdp,hsdp,fsdp+pipeline",)
_LINE = re.compile(r"cdmpp: (?P<number>[\d,]+) (?P<what>.+): (?P<seconds>[\d.]+) CPU seconds, \S+ a second")


def rows_of(command: str, log: str, whole_s: float) -> list[tuple[str, ...]]:
    """Return a row for each line of the log of a command that counts something, and one for all of it."""
    found = [(command, one["what"], one["number"], one["seconds"]) for one in _LINE.finditer(log)]
    return [*found, (command, "all, with imports and exports", "", f"{whole_s:.1f}")]


def run(command: str) -> list[tuple[str, ...]]:
    """Run one search and return its rows."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    words = [sys.executable, "-m", "cdmpp.cli", "--verbose", "plan", *shlex.split(command)]
    made = subprocess.run(words, capture_output=True, text=True, check=True)
    return rows_of(command, made.stderr, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)


def table_of(rows: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    """Return the table of the page."""
    commands = ["python -m benchmarks.plans.search_cost --publish"]
    return {"title": TITLE, "note": NOTE, "commands": commands, "columns": [*COLUMNS], "rows": [[*row] for row in rows]}


def main(words: Sequence[str]) -> None:
    """Print the rows of all commands, and publish them where asked for."""
    rows = [row for command in COMMANDS for row in run(command)]
    for row in rows:
        print(" | ".join(row), flush=True)
    if "--publish" in words:
        change("plans", lambda tables: [*(one for one in tables if one["title"] != TITLE), table_of(rows)])


if __name__ == "__main__":
    main(sys.argv[1:])
