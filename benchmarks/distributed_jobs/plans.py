"""Measure parallel plans of two networks on 2 and 4 ranks, in turns: what ``benchmarks.plans.gloo`` predicts.

python -m benchmarks.distributed_jobs.plans --out FOLDER [--minutes M] [--rounds N] [--only TEXT]

All jobs stay built, in as many processes as they have ranks, and each round runs each of them once, so that a slow
minute of the machine is one round of all of them. Jobs of ``TRACED`` are traced in each round too. Collectives are
timed alone before and after the rounds. Writes FOLDER/visits.jsonl, a line a job and round, FOLDER/layers.jsonl and
packed.jsonl, tables of layers timed by one process a core and by two, and traces and timed collectives below. Needs
root, `ip`, `tc`, and a machine where nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.distributed_jobs.layers import measured
from benchmarks.distributed_jobs.scenario import Scenario
from cdmpp.synchrony.processes.namespaces import Place, limit, links, why_not

MBIT = {"gpt-long": (400, 800), "cnn-large": (200, 400)}
"""Network -> rates of the links."""
CUTS = {("gpt-long", 2): (3,), ("gpt-long", 4): (2, 3, 4), ("cnn-large", 2): (4,), ("cnn-large", 4): (2, 4, 5)}
"""Network and stages -> first block of each stage but the first one."""
BATCH = 4
"""Examples of a micro-batch."""
TRACED = ("ddp", "fsdp")
"""Schemes that are traced, on two ranks at the first rate of a network."""
KINDS = ("all_reduce", "all_gather", "broadcast", "send_recv")
"""Collectives that are timed alone."""
SPENT_S, FEWEST, MOST = 2.5, 3, 6
"""Seconds of the steps of one job in one round, and the fewest and most steps."""
_REPOSITORY = Path(__file__).parents[2]


def jobs(network: str, ranks: int, mbit: int) -> tuple[Scenario, ...]:
    """The plans of one network on so many ranks."""
    ddp = Scenario(network, "ddp", mbit, ranks=ranks, batch=BATCH, is_traced=False)
    fsdp = replace(ddp, scheme="fsdp")
    pipeline = replace(ddp, scheme="pipeline", cuts=CUTS[network, ranks], micro_batches=4)
    if ranks == 2:
        return ddp, fsdp, pipeline, replace(ddp, micro_batches=2)
    of_two = replace(pipeline, replicas=2, cuts=CUTS[network, 2])
    # DDP around a stage wants a forward pass after its first backward pass: more micro-batches than stages
    return ddp, fsdp, pipeline, replace(fsdp, replicas=2), of_two


def all_jobs() -> Iterator[Scenario]:
    """In the order of a round."""
    for turn in (0, 1):
        for network, rates in MBIT.items():
            for ranks in (2, 4):
                yield from jobs(network, ranks, rates[turn])


def is_base(scenario: Scenario, network: str) -> bool:
    """True of the jobs of a network that are traced."""
    is_first = scenario.network == network and scenario.mbit == MBIT[network][0] and scenario.micro_batches == 1
    return is_first and scenario.ranks == 2 and scenario.scheme in TRACED


class Crew:
    """The processes of so many ranks. Its jobs have no rate: the links are told theirs from outside."""

    def __init__(self, scenarios: Sequence[Scenario], places: Sequence[Place], folder: Path) -> None:
        self.ranks, first = len(places), scenarios[0]
        port = str(29400 + self.ranks)
        shared = {**os.environ, "MASTER_ADDR": places[0].address, "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
                  "GLOO_SOCKET_IFNAME": "eth0", "WORLD_SIZE": str(self.ranks), "PYTHONPATH": str(_REPOSITORY),
                  "KINETO_LOG_LEVEL": "5"}  # fmt: skip
        told = json.dumps([one.to_dict() for one in dict.fromkeys(unrated(one) for one in scenarios)])
        self._logs = [(folder / f"log-{self.ranks}-{rank}").open("w") for rank in range(self.ranks)]
        self._ranks = [
            subprocess.Popen(
                [*place.command, "taskset", "-c", str(first.cores[rank % len(first.cores)]), sys.executable, "-m",
                 "benchmarks.distributed_jobs.crew", told],
                env={**shared, "RANK": str(rank)}, cwd=_REPOSITORY, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._logs[rank],
            )
            for rank, place in enumerate(places)
        ]  # fmt: skip

    def said(self) -> list[dict[str, Any]]:
        """One answer of each rank; ``RuntimeError`` with the last words of one that failed."""
        found = []
        for rank, one in enumerate(self._ranks):
            line = one.stdout.readline()  # type: ignore[union-attr]
            if not line:
                words = Path(self._logs[rank].name).read_text()[-1500:]
                raise RuntimeError(f"rank {rank} of {self.ranks}: {words}")
            found.append(json.loads(line))
        return found

    def ask(self, order: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Give all ranks an order and return their answers."""
        for one in self._ranks:
            one.stdin.write(json.dumps(order) + "\n")  # type: ignore[union-attr]
            one.stdin.flush()  # type: ignore[union-attr]
        return self.said()

    def end(self) -> None:
        for one in self._ranks:
            one.kill()
            one.wait()
        for log in self._logs:
            log.close()


def unrated(scenario: Scenario) -> Scenario:
    return replace(scenario, mbit=0)


@contextmanager
def crews(wanted: Sequence[Scenario], folder: Path) -> Iterator[tuple[tuple[Place, ...], dict[int, Crew]]]:
    """The links, and a crew for each number of ranks. All are ended and deleted at the end."""
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        places = stack.enter_context(links([2000] * max(one.ranks for one in wanted)))
        found = {}
        for ranks in sorted({one.ranks for one in wanted}):
            found[ranks] = Crew([one for one in wanted if one.ranks == ranks], places[:ranks], logs)
            stack.callback(found[ranks].end)
        for crew in found.values():
            crew.said()
        yield places, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of what is measured; made where it is not")
    parser.add_argument("--only", default="", help="jobs with this text in their name")
    parser.add_argument("--minutes", type=float, default=14.0, help="no round begins later than this (default 14)")
    parser.add_argument("--rounds", type=int, default=4, help="most rounds (default 4)")
    parser.add_argument("--probe-s", type=float, default=1.5, help="seconds of each collective alone (default 1.5)")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are deleted then too
    if reason := why_not():
        print(f"cannot measure here: {reason}", file=sys.stderr)
        return 2
    if (asked.out / "visits.jsonl").exists():
        print(f"{asked.out} has visits already: name a new folder", file=sys.stderr)
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    wanted = [one for one in all_jobs() if asked.only in one.name]
    begin_s = time.time()
    for network in dict.fromkeys(one.network for one in wanted):
        _append(asked.out / "layers.jsonl", measured(network, BATCH, (0, 1)))
        _append(asked.out / "packed.jsonl", measured(network, BATCH, (0, 0, 1, 1)))
    with crews(wanted, asked.out) as (places, crew):
        _say(begin_s, "all jobs are built")
        _probe(wanted, places, crew, asked.out / "probes" / "before", asked.probe_s)
        _say(begin_s, "collectives are timed")
        longest: dict[str, float] = {}
        for number in range(asked.rounds):
            if time.time() - begin_s > 60 * asked.minutes:
                break
            for one in wanted:
                _limit(places, one.mbit)
                steps = max(FEWEST, min(MOST, int(SPENT_S / longest.get(one.name, SPENT_S))))
                order = {"name": unrated(one).name, "steps": steps}
                for is_traced in (False, True)[: 1 + is_base(one, one.network)]:
                    trace = {"trace": str(asked.out / "traces" / f"{one.name}" / str(number))} if is_traced else {}
                    at_s = time.time() - begin_s
                    ranks_told = crew[one.ranks].ask({**order, **trace})
                    row = {"name": one.name, "scenario": one.to_dict(), "round": number, "at_s": at_s}
                    _append(asked.out / "visits.jsonl", [{**row, "is_traced": is_traced, "ranks": ranks_told}])
                    longest[one.name] = max(max(rank["steps_s"]) for rank in ranks_told)
            _say(begin_s, f"round {number + 1}")
        _probe(wanted, places, crew, asked.out / "probes" / "after", asked.probe_s)
    _say(begin_s, "collectives are timed again")
    return 0


def _limit(places: Sequence[Place], mbit: int) -> None:
    for place in places:
        limit(place, mbit)


def _probe(
    wanted: Sequence[Scenario], places: Sequence[Place], crew: Mapping[int, Crew], folder: Path, budget_s: float
) -> None:
    """Time collectives of all ranks, and of pairs of them, at each rate."""
    for mbit in sorted({one.mbit for one in wanted}):
        _limit(places, mbit)
        for ranks in sorted({one.ranks for one in wanted if one.mbit == mbit}):
            for size in dict.fromkeys((ranks, 2)):
                into = folder / f"{size} of {ranks} ranks, {mbit} Mbit"
                into.mkdir(parents=True)
                kinds = KINDS if size == ranks else KINDS[:2]
                crew[ranks].ask({"probe": str(into), "kinds": kinds, "budget_s": budget_s, "ranks": size})


def _say(begin_s: float, what: str) -> None:
    print(f"{time.time() - begin_s:.0f} s: {what}", flush=True)


def _append(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with file.open("a") as into:
        into.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
