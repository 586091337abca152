"""Measure parallel plans of two networks on 2 and 4 ranks: what ``benchmarks.plans.gloo`` predicts.

python -m benchmarks.distributed_jobs.plans --out FOLDER [--only TEXT] [--minutes M]

Writes FOLDER/layers.jsonl, tables of layers timed by themselves, FOLDER/traces, and at the end FOLDER/rows.jsonl, a row
a job. What is there already is not run again. Needs root, `ip`, `tc`, and a machine where nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.distributed_jobs.layers import measured
from benchmarks.distributed_jobs.measure import row_of, run_all
from benchmarks.distributed_jobs.scenario import SCENARIOS, Scenario
from cdmpp.synchrony.processes.namespaces import why_not

MBIT = {("gpt-long", 2): (400, 200, 800), ("cnn-large", 2): (200, 100, 400), ("gpt-long", 4): (800, 400),
        ("cnn-large", 4): (400, 200)}  # fmt: skip
"""Network and ranks -> rates of the links."""
CUTS = {("gpt-long", 2): (3,), ("gpt-long", 4): (2, 3, 4), ("cnn-large", 2): (4,), ("cnn-large", 4): (2, 4, 5)}
"""Network and stages -> first block of each stage but the first one."""
BATCHES = (4, 2)
"""Examples of a micro-batch."""
AGAIN = ("gpt-ddp-2ranks-400Mbit-1MB", "gpt-ddp-2ranks-400Mbit-25MB", "mlp-ddp-2ranks-400Mbit-1MB",
         "gpt-fsdp-2ranks-800Mbit", "gpt-ddp-2ranks-800Mbit-1MB", "mlp-ddp-2ranks-800Mbit-25MB",
         "cnn-ddp-2ranks-200Mbit-0.5MB", "cnn-ddp-2ranks-200Mbit-25MB", "mlp-fsdp-2ranks-800Mbit",
         "mlp-ddp-2ranks-1600Mbit-1MB")  # fmt: skip
"""Jobs of ``benchmarks.distributed_jobs`` that are run once more."""


def jobs(network: str, ranks: int, mbit: int) -> tuple[Scenario, ...]:
    """One traced job and the plans that are predicted."""
    base = Scenario(network, "ddp", mbit, ranks=ranks, batch=BATCHES[0])
    timed = replace(base, is_traced=False)
    pipeline = replace(timed, scheme="pipeline", cuts=CUTS[network, ranks])
    found = [
        base,
        replace(timed, scheme="fsdp"),
        replace(pipeline, micro_batches=4, is_traced=ranks == 2),
        replace(pipeline, micro_batches=8, batch=BATCHES[1]),
    ]
    if ranks == 2:
        return (*found, replace(timed, micro_batches=2))
    of_two = replace(pipeline, replicas=2, cuts=CUTS[network, 2])
    hybrid = replace(timed, scheme="fsdp", replicas=2)
    # DDP around a stage wants a forward pass after its first backward pass: more micro-batches than stages
    return (*found, hybrid, replace(of_two, micro_batches=4), replace(of_two, micro_batches=4, batch=BATCHES[1]))


def groups() -> Iterator[tuple[Scenario, ...]]:
    """Jobs that run in the same processes: the middle rate of all first, so that a run cut short is of use."""
    for turn in range(3):
        for (network, ranks), rates in MBIT.items():
            if turn < len(rates):
                yield jobs(network, ranks, rates[turn])
    for mbit in (400, 800, 200, 1600):
        yield tuple(one for one in SCENARIOS if one.name in AGAIN and one.mbit == mbit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the rows; made where it is not")
    parser.add_argument("--only", default="", help="jobs with this text in the name of their first")
    parser.add_argument("--minutes", type=float, default=60.0, help="no job begins later than this (default 60)")
    parser.add_argument("--steps", type=int, default=14, help="most steps without the profiler (default 14)")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are deleted then too
    if reason := why_not():
        print(f"cannot measure here: {reason}", file=sys.stderr)
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    begin_s, ran, tables = time.time(), asked.out / "ran.jsonl", asked.out / "layers.jsonl"
    if not tables.exists():
        for network in dict.fromkeys(network for network, _ in MBIT):
            for batch in BATCHES:
                _append(tables, measured(network, batch, (0, 1)))
                print(f"{time.time() - begin_s:.0f} s: layers of {network}, {batch} examples", flush=True)
    have = (
        {name for line in ran.read_text().splitlines() for name in json.loads(line)["names"]} if ran.exists() else set()
    )
    for group in groups():
        left = [one for one in group if one.name not in have]
        if not left or asked.only not in left[0].name or time.time() - begin_s > 60 * asked.minutes:
            continue
        try:
            shared = run_all(left, asked.steps, asked.out / "traces")
            _append(ran, [{"names": [one.name for one in left], **shared}])
        except RuntimeError as error:
            print(error, file=sys.stderr)
        print(f"{time.time() - begin_s:.0f} s: {left[0].name} and {len(left) - 1} more", flush=True)
    if not asked.only:
        read(asked.out)
    return 0


def read(folder: Path) -> None:
    """Write the row of each job that ran; a trace that cannot be read leaves its job without a graph."""
    wanted, rows = {one.name: one for group in groups() for one in group}, []
    for line in (folder / "ran.jsonl").read_text().splitlines():
        shared = json.loads(line)
        for name in shared.pop("names"):
            rows.append({**shared, **row_of(wanted[name], folder / "traces")})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _append(file: Path, rows: list) -> None:
    with file.open("a") as into:
        into.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
