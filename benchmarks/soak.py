"""Nothing lost, nothing doubled: random kills of import, measuring and training, and pairs of them at the same time.

``python benchmarks/soak.py --kills 100 --pairs 20 --seed 0``. Every folder that survived is compared with what one
undisturbed run leaves. Real databases (the tests' fixtures), real measurements of twelve tiny programs, real training
of a small model; nothing of it is fast. Exit status 1 where anything was lost, doubled or different.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
# Of the process that children are forked from: it imports TVM and torch once, for all.
os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])}

from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: E402
from rich.table import Table  # noqa: E402
from soak_work import prepare, work  # noqa: E402

from cdmpp.data.records import read_info, read_records, read_tasks, record_parts  # noqa: E402
from cdmpp.platform.files import FAILURES_FILE, read_json, read_lines, read_table  # noqa: E402

CONTEXT = multiprocessing.get_context("forkserver")
REFUSED = "is being written by"
LIMIT_S = 600.0


class Run:
    """One child process, stopped right before its work."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.log = log
        self.pipe, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=work, args=(command, theirs, str(log)))
        self.process.start()
        theirs.close()
        self.pipe.recv()

    def go(self) -> None:
        self.pipe.send("go")

    def killed_after(self, seconds: float) -> bool:
        """Kill it then; False where it had ended by itself."""
        self.process.join(seconds)
        self.process.kill()
        self.process.join()
        return self.process.exitcode == -signal.SIGKILL

    def end(self) -> tuple[int, str]:
        """Exit status and what it said."""
        self.process.join(LIMIT_S)
        self.process.kill()
        self.process.join()
        return self.process.exitcode or 0, self.log.read_text()


def data_set(folder: Path) -> dict[str, object]:
    """Everything that an import leaves, in an order of its own."""
    records = sorted(read_records(folder), key=lambda record: record.record_id)
    info = read_info(folder)
    tasks = {key: (task.networks, task.workload) for key, task in read_tasks(folder).items()}
    return {"records": records, "tasks": tasks, "counts": info["counts"], "complete": info["complete"]}


def measurements(folder: Path) -> dict[str, object]:
    """What is the same in every collection: which programs, how many samples of how many visits."""
    records = read_records(folder)
    visits = {r.record_id: r.extra["samples_per_visit"] for r in records}
    samples = {r.record_id: len(r.latency_samples_s) for r in records}
    sound = all(sum(map(int, visits[key].split(","))) == n for key, n in samples.items())
    return {
        "programs": sorted(visits),
        "sound": sound,
        "counted": read_info(folder)["programs"],
        "failures": len(read_lines(folder / FAILURES_FILE)),
    }


def trained(folder: Path) -> dict[str, object]:
    """Bits of the model, and the course of its errors."""
    rows = [line.rsplit(",", 1)[0] for line in (folder / "history.csv").read_text().splitlines()]
    weights = hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()
    return {"weights": weights, "history": rows, "seed": read_json(folder / "run.json")["seed"]}


def doubled(folder: Path) -> int:
    """Rows beyond the first of each program, in the files themselves."""
    keys = Counter(row["record_id"] for part in record_parts(folder) for row in read_table(part).to_pylist())
    return sum(keys.values()) - len(keys)


@dataclass
class Kind:
    """One of the things that are killed: its command, what reads the result, and what an undisturbed run left."""

    name: str
    command: Callable[[Path], list[str]]
    read: Callable[[Path], dict[str, object]]
    expected: list[dict[str, object]] = field(default_factory=list)
    seconds: float = 0.0
    """That an undisturbed run works."""


class Soak:
    def __init__(self, scratch: Path, seed: int, progress: Progress) -> None:
        self.scratch, self.random, self.bar = scratch, random.Random(seed), progress
        self.number = 0
        self.tally: dict[str, Counter[str]] = {}
        self.faults: list[str] = []
        databases = prepare(scratch)

        def imported(source: Path) -> Callable[[Path], list[str]]:
            return lambda out: ["import", str(source), str(out), source.name.split("_")[0]]

        self.first, self.second = imported(databases[0]), imported(databases[1])
        self.kinds = {
            "import": Kind("import", self.first, data_set),
            "measure": Kind("measure", lambda out: ["measure", str(out)], measurements),
            "train": Kind("train", lambda out: ["train", str(out), "0"], trained),
        }
        for kind in self.kinds.values():
            kind.expected = [self.undisturbed(kind, [kind.command])]
        self.both = Kind("two networks", self.first, data_set)
        orders = ([self.first, self.second], [self.second, self.first])
        self.both.expected = [self.undisturbed(self.both, order) for order in orders]
        other = Kind("train", lambda out: ["train", str(out), "1"], trained)
        self.two_seeds = [*self.kinds["train"].expected, self.undisturbed(other, [other.command])]

    def folder(self) -> Path:
        self.number += 1
        return self.scratch / f"{self.number:04d}"

    def begin(self, command: list[str]) -> Run:
        self.number += 1
        return Run(command, self.scratch / f"{self.number:04d}.log")

    def undisturbed(self, kind: Kind, commands: Sequence[Callable[[Path], list[str]]]) -> dict[str, object]:
        out = self.folder()
        for command in commands:
            run = self.begin(command(out))
            start = time.monotonic()
            run.go()
            status, said = run.end()
            if status:
                raise SystemExit(f"an undisturbed {kind.name} failed:\n{said}")
            kind.seconds = time.monotonic() - start
        return kind.read(out)

    def kills(self, kind: Kind, budget: int) -> int:
        """One folder through up to ``budget`` random kills to its end; returns how many hit."""
        out, hit = self.folder(), 0
        for _ in range(min(budget, self.random.randint(1, 4))):
            run = self.begin(kind.command(out))
            run.go()
            if not run.killed_after(self.random.uniform(0.0, kind.seconds)):
                kind.seconds *= 0.8  # the machine has become faster
                break
            hit += 1
        run = self.begin(kind.command(out))
        run.go()
        status, said = run.end()
        self.check(f"{kind.name}, killed", kind.read, kind.expected, out, [(status, said)], hit)
        return hit

    def pair(self, name: str, commands: Sequence[Callable[[Path], list[str]]], kind: Kind, expected: list) -> None:
        """Two processes into one folder at the same moment; at least one of them ends well."""
        out = self.folder()
        runs = [self.begin(command(out)) for command in commands]
        for run in runs:
            run.go()
        self.check(name, kind.read, expected, out, [run.end() for run in runs], 1)

    def check(
        self,
        name: str,
        read: Callable[[Path], dict[str, object]],
        expected: list[dict[str, object]],
        out: Path,
        ends: list[tuple[int, str]],
        count: int,
    ) -> None:
        row = self.tally.setdefault(name, Counter())
        row["done"] += count
        row["folders"] += 1
        row["refused"] += sum(status != 0 and REFUSED in said for status, said in ends)
        failed = [said for status, said in ends if status != 0 and REFUSED not in said]
        extra = doubled(out) if (out / "records").exists() else 0
        try:
            found = read(out)
        except (OSError, ValueError, KeyError) as error:
            found = {"unreadable": str(error)}
        row["doubled rows"] += extra
        row["different"] += found not in expected
        row["failed"] += bool(failed) or all(status for status, _ in ends)
        if extra or failed or found not in expected or all(status for status, _ in ends):
            wrong = [key for key in expected[0] if found.get(key) != expected[0][key]]
            self.faults.append(f"{name} in {out}: {extra} doubled, differs in {wrong}; {' '.join(failed)[-2000:]}")
        else:
            shutil.rmtree(out)

    def run(self, kills: int, pairs: int) -> None:
        done, line = 0, self.bar.add_task("kills", total=kills)
        kinds = list(self.kinds.values())
        for turn in range(10 * kills):
            if done >= kills:
                break
            done += self.kills(kinds[turn % len(kinds)], kills - done)
            self.bar.update(line, completed=done)
        train = self.kinds["train"]
        ways: list[tuple[str, list, Kind, list]] = [
            ("one database twice", [self.first] * 2, self.kinds["import"], self.kinds["import"].expected),
            ("two networks", [self.first, self.second], self.both, self.both.expected),
            ("two trainings", [train.command, lambda out: ["train", str(out), "1"]], train, self.two_seeds),
            ("two collections", [self.kinds["measure"].command] * 2, self.kinds["measure"],
             self.kinds["measure"].expected),
        ]  # fmt: skip
        line = self.bar.add_task("pairs", total=pairs)
        for turn in range(pairs):
            self.pair(*ways[turn % len(ways)])
            self.bar.advance(line)


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--kills", type=int, default=100)
    words.add_argument("--pairs", type=int, default=20)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--keep", type=Path, help="folder for what went wrong (default: a temporary one, deleted)")
    options = words.parse_args()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console()
    with tempfile.TemporaryDirectory(prefix="cdmpp-soak-") as temporary, Progress(*columns, console=console) as bar:
        scratch = options.keep or Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        soak = Soak(scratch, options.seed, bar)
        soak.run(options.kills, options.pairs)
    table = Table(title=f"soak, seed {options.seed}")
    headings = ("done", "folders", "refused", "doubled rows", "different", "failed")
    for heading in ("", *headings):
        table.add_column(heading, justify="right" if heading else "left")
    for name, row in soak.tally.items():
        table.add_row(name, *(str(row[heading]) for heading in headings))
    console.print(table)
    for fault in soak.faults:
        console.print(fault, markup=False)
    return int(bool(soak.faults))


if __name__ == "__main__":
    CONTEXT.set_forkserver_preload(["soak_work"])
    sys.exit(main())
