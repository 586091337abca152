"""Measure real training jobs, trace them, and score their replays.

python -m benchmarks.distributed_jobs --out FOLDER [--only TEXT] [--visits N]    # runs what FOLDER lacks, then scores
python -m benchmarks.distributed_jobs --out FOLDER --score [--publish]           # scores what is there

Each rank is a process in a network namespace of its own, on a core of its own, with one thread. Needs root, `ip`, `tc`.
A job that ran is one line of FOLDER/rows.jsonl; a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.distributed_jobs.measure import measure
from benchmarks.distributed_jobs.report import TABLE, markdown, overhead, publish
from benchmarks.distributed_jobs.scenario import SCENARIOS
from benchmarks.distributed_jobs.score import DRIFT, figures, read_rows, usable
from cdmpp.synchrony.processes.namespaces import why_not


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the rows; made where it is not")
    parser.add_argument("--only", default="", help="jobs with this text in their name")
    parser.add_argument("--visits", type=int, default=1, help="how often each job is run, visits apart in time")
    parser.add_argument("--steps", type=int, default=30, help="steps without the profiler, a job (default 30)")
    parser.add_argument("--keep-traces", action="store_true", help="under FOLDER/traces, some MB a job")
    parser.add_argument("--list", action="store_true", help="print the names of the jobs")
    parser.add_argument("--score", action="store_true", help="run nothing")
    drift = (
        "leave out jobs whose reference kernel was slower by more than this share than in the best one (default 0.1)"
    )
    parser.add_argument("--drift", type=float, default=DRIFT, help=drift)
    parser.add_argument("--publish", action="store_true", help=f"write {TABLE.name} and the table of its page")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are deleted then too
    wanted = [one for one in SCENARIOS if asked.only in one.name]
    if asked.list:
        print("\n".join(one.name for one in wanted))
        return 0
    if not asked.score:
        if reason := why_not():
            print(f"cannot measure here: {reason}", file=sys.stderr)
            return 2
        _run(wanted, asked)
    rows = [row for row in read_rows(asked.out) if asked.only in row["name"]]
    if not rows:
        print(f"no rows in {asked.out}: run without --score first", file=sys.stderr)
        return 2
    measured, refused = usable(rows, asked.drift)
    for reason in refused:
        print(f"left out: {reason}", file=sys.stderr)
    if not measured:
        print("no job counts: run them where nothing else runs", file=sys.stderr)
        return 2
    found = list(figures(measured))
    print(markdown(found))
    print(overhead(measured))
    if asked.publish:
        publish(found)
    return 0


def _run(wanted: list, asked: argparse.Namespace) -> None:
    asked.out.mkdir(parents=True, exist_ok=True)
    have = [row["name"] for row in read_rows(asked.out)]
    plan = [one for visit in range(asked.visits) for one in wanted if have.count(one.name) <= visit]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn()) as progress:
        bar = progress.add_task("jobs", total=len(plan))
        for one in plan:
            progress.update(bar, description=one.name)
            try:
                row = measure(one, asked.steps, asked.out / "traces" if asked.keep_traces else None)
                with (asked.out / "rows.jsonl").open("a") as file:
                    file.write(json.dumps(row) + "\n")
            except RuntimeError as error:
                print(error, file=sys.stderr)
            progress.advance(bar)


if __name__ == "__main__":
    sys.exit(main())
