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
    "``cdmpp -v plan NETWORK`` of large networks with all strategies that are asked for, on a machine that others use; "
    "seconds are CPU seconds of the process, imports included. What one device runs is read first, then all plans are "
    "judged by closed form, the best ones replayed, and settings of the best one searched; of plans on more devices "
    "those are judged whose passes alone are not slower than the best plan of the same strategies. Readings and ways "
    "to divide are parts of what is judged."
)
COLUMNS = ("what", "number", "CPU seconds")
COMMANDS = (
    "hf:meta-llama/Llama-3.1-8B --device h100 --cluster dgx-h100 --gpus 64 --global-batch 512 --seq 8192 "
    "--precision bf16",
    "hf:mistralai/Mixtral-8x7B-v0.1 --device h100 --cluster dgx-h100 --gpus 128 --strategies ep,tp,pp,fsdp",
)
_LINE = re.compile(r"cdmpp: (?P<number>[\d,]+) (?P<what>.+): (?P<seconds>[\d.]+) CPU seconds, \S+ a second")


def rows_of(log: str, whole_s: float) -> list[tuple[str, ...]]:
    """Return a row for each line of the log of a command that counts something, and one for all of it."""
    found = [(one["what"], one["number"], one["seconds"]) for one in _LINE.finditer(log)]
    return [*found, ("all, with imports and exports", "", f"{whole_s:.1f}")]


def run(command: str) -> list[tuple[str, ...]]:
    """Run one search and return its rows."""
    before_s = _children_s()
    words = [sys.executable, "-m", "cdmpp.cli", "--verbose", "plan", *shlex.split(command)]
    made = subprocess.run(words, capture_output=True, text=True, check=True)
    return rows_of(made.stderr, _children_s() - before_s)


def _children_s() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def table_of(command: str, rows: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    """Return the table of one command."""
    commands = ["python -m benchmarks.plans.search_cost --publish"]
    note = f"{NOTE if command == COMMANDS[0] else ''}\n\n`cdmpp -v plan {command}`:".lstrip()
    return {"title": TITLE, "note": note, "commands": commands, "columns": [*COLUMNS], "rows": [[*row] for row in rows]}


def main(words: Sequence[str]) -> None:
    """Print the rows of all commands, and publish them where asked for."""
    found = []
    for command in COMMANDS:
        rows = run(command)
        print(command, *(" | ".join(row) for row in rows), sep="\n", flush=True)
        found.append(table_of(command, rows))
    if "--publish" in words:
        change("plans", lambda tables: [*(one for one in tables if one["title"] != TITLE), *found])


if __name__ == "__main__":
    main(sys.argv[1:])
