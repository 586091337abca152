"""Measure real jobs of workers and parameter servers on this machine: a grid, and policies on uneven workers.

python -m benchmarks.synchrony.measure alone|grid|again|policies [--only TEXT] [--minutes M]

    alone      seconds of a batch of one worker at each CPU share, and what the links carry
    grid       equal workers: workers x CPU share x rate x batches between commits x servers, two networks
    again      the grid a second time
    policies   four uneven workers under each policy, five seeds, and the same workers alone before and after

In the same processes, before and after each job of the grid, its workers train without servers. Jobs come in a drawn
order. One that other programs disturbed is measured twice.

Adds what docs/measured/runs/synchrony.json lacks; a run that was stopped goes on where it was. Needs root, `ip`, `tc`,
a control group of the CPU, and two cores on which nothing else runs.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.distributed_jobs.link import carried_mbit
from benchmarks.synchrony.cells import (
    BASE_SHARE,
    GRID,
    NETWORKS,
    POLICIES,
    POLICY_NETWORK,
    POLICY_S,
    RATES,
    SEEDS,
    SERVER_CORE,
    SHARES,
    UNEVEN,
    UNEVEN_ALONE_S,
    UNEVEN_MBIT,
    WORKER_CORE,
    Cell,
    steady_rate,
    uneven_places,
)
from benchmarks.synchrony.framed import Framed, means
from benchmarks.synchrony.other_programs import cpu_seconds, taken
from benchmarks.synchrony.trainings import TRAININGS
from cdmpp.platform.files import read_json, write_json
from cdmpp.synchrony.policies import synchrony_of
from cdmpp.synchrony.processes import namespaces, quota
from cdmpp.synchrony.processes.job import run
from cdmpp.synchrony.processes.place import ServerPlace, WorkerPlace
from cdmpp.synchrony.processes.record import RunRecord

RUNS = Path(__file__).parents[2] / "docs" / "measured" / "runs" / "synchrony.json"
_NEVER = "local:1000000000"
_ALONE_S = 4.0
_LEAST_S, _MOST_S, _ROUNDS = 4.0, 7.0, 16
_BATCHES_AROUND = 11
"""Batches of a worker before a job, and after it."""
_NICE = -10
"""Coordinator and servers come before other programs; workers have their shares before them anyway."""


def runs(path: Path = RUNS) -> dict[str, dict[str, Any]]:
    """What was measured, by name."""
    return read_json(path) if path.exists() else {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("alone", "grid", "again", "policies"))
    parser.add_argument("--only", default="", help="runs with this text in their name")
    parser.add_argument("--into", type=Path, default=RUNS, help="file of the runs")
    parser.add_argument(
        "--others", type=float, default=0.3, help="cores of other programs from which a run is repeated"
    )
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no run after so many")
    asked = parser.parse_args()
    begin_s = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are deleted then too
    if reason := namespaces.why_not() or quota.why_not():
        print(f"cannot measure here: {reason}", file=sys.stderr)
        return 2
    os.sched_setaffinity(0, {SERVER_CORE})  # the coordinator leaves the workers' core to them
    os.nice(_NICE)
    asked.into.parent.mkdir(parents=True, exist_ok=True)
    found = runs(asked.into)
    found.setdefault("host", _host())
    parts = {"alone": _alone, "grid": _grid, "again": lambda: _grid("again"), "policies": _policies}
    for name, measure in parts[asked.part]():
        if time.monotonic() - begin_s > 60 * asked.minutes:
            break
        if asked.only in name and name not in found:
            found[name] = _undisturbed(measure, asked.others)
            write_json(asked.into, found)
            print(name, {key: value for key, value in found[name].items() if key.endswith("_s")}, flush=True)
    return 0


def _host() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    names = ("model name", "cpu family", "model")
    return {**{name: told.get(name, "") for name in names}, "cores": os.cpu_count(), "kernel": platform.release()}


def _undisturbed(measure: Callable[[], dict[str, Any]], most: float) -> dict[str, Any]:
    """Measure, twice where other programs took more than so many cores; keep what they disturbed the least."""
    tries = []
    for _ in range(2):
        begin_s, before = time.monotonic(), cpu_seconds()
        found = measure()
        others = taken(before, cpu_seconds()) / (time.monotonic() - begin_s)
        tries.append({**_rounded(found), "other_programs": round(others, 4)})
        if others <= most:
            break
    return min(tries, key=lambda one: one["other_programs"])


def _rounded(value: Any) -> Any:
    """Numbers with five digits: more are noise, and would fill the file."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


Measured = Iterator[tuple[str, Callable[[], dict[str, Any]]]]


def _alone() -> Measured:
    for mbit in RATES:
        yield f"link/{mbit:g}", lambda mbit=mbit: _link(mbit)
    for network in NETWORKS:
        for share in SHARES:
            yield f"alone/{network}/{share:g}", lambda network=network, share=share: _batch(network, share)
    for part in sorted(set(UNEVEN)):
        share = round(BASE_SHARE * part, 4)
        yield f"alone/{POLICY_NETWORK}/{share:g}", lambda share=share: _batch(POLICY_NETWORK, share)


def _link(mbit: float) -> dict[str, Any]:
    with namespaces.links([mbit, mbit]) as places:
        return {"mbit": mbit, **carried_mbit(places, (SERVER_CORE, WORKER_CORE))}


def _batch(network: str, share: float) -> dict[str, Any]:
    record = run(TRAININGS[network], synchrony_of(_NEVER), [WorkerPlace(share, None, WORKER_CORE)], seconds=_ALONE_S)
    one = record.workers[0]
    loss = [[point.at_s, point.samples, point.held_out_loss] for point in record.losses]
    return {
        "network": network, "share": share, "batch_s": one.batch_s, "spread": one.spread, "batches": one.share.batches,
        "samples": one.share.samples // one.share.batches, "parameter_bytes": record.parameter_bytes, "loss": loss,
    }  # fmt: skip


def _grid(prefix: str = "grid") -> Measured:
    for cell in random.Random(prefix).sample(GRID, len(GRID)):
        yield f"{prefix}/{cell.name}", lambda cell=cell: _cell(cell)


def _cell(cell: Cell) -> dict[str, Any]:
    around_s = _BATCHES_AROUND * cell.about_batch_s
    round_s = cell.every * cell.about_batch_s + 16.0 / cell.mbit * max(1, cell.workers / 2)
    seconds = float(np.clip(_ROUNDS * round_s, _LEAST_S, _MOST_S))
    framed = Framed(synchrony_of(f"async:{cell.every}"), around_s, around_s + seconds)
    whole_s = framed.end_s + around_s
    record = run(TRAININGS[cell.network], framed, cell.worker_places, cell.server_places, whole_s, point_s=whole_s)
    return {"cell": cell.to_dict(), **_rates(record, framed)}


def _rates(record: RunRecord, framed: Framed) -> dict[str, Any]:
    batches = framed.batch_seconds()
    rates = [
        steady_rate([(one.at_s, one.batches) for one in worker.commits if one.at_s <= framed.end_s])
        * worker.share.samples / worker.share.batches
        for worker in record.workers
    ]  # fmt: skip
    return {
        "seconds_s": framed.end_s - framed.begin_s,
        "begin_s": framed.begin_s,
        "samples_per_s": sum(rates),
        "commits": [worker.share.commits for worker in record.workers],
        "batch_s": means(batches["during"]),
        "batch_before_s": means(batches["before"]),
        "batch_after_s": means(batches["after"]),
        "spread": [float(np.std(own) / np.mean(own)) for own in batches["during"]],
        "communication_s": [worker.share.communication_s for worker in record.workers],
        "server_busy_s": [server.share.busy_s for server in record.servers],
        "queue": record.servers[0].share.queue,
    }


def _policies() -> Measured:
    """Jobs of each seed in a drawn order; before and after them the same workers without servers."""
    for seed in SEEDS:
        yield f"uneven/{seed}/0", _uneven_alone
        for name in random.Random(seed).sample(list(POLICIES), len(POLICIES)):
            yield f"policies/{name}/{seed}", lambda name=name, seed=seed: _policy(name, seed)
        yield f"uneven/{seed}/1", _uneven_alone
        yield f"policies/one/{seed}", lambda seed=seed: _one(seed)


def _uneven_alone() -> dict[str, Any]:
    framed = Framed(synchrony_of(_NEVER), 0.0, UNEVEN_ALONE_S)
    run(TRAININGS[POLICY_NETWORK], framed, uneven_places(), seconds=UNEVEN_ALONE_S, point_s=UNEVEN_ALONE_S)
    batches = framed.batch_seconds()["during"]
    return {"batch_s": means(batches), "spread": [float(np.std(own) / np.mean(own)) for own in batches]}


def _policy(name: str, seed: int) -> dict[str, Any]:
    record = run(
        TRAININGS[POLICY_NETWORK], POLICIES[name], uneven_places(), [ServerPlace(UNEVEN_MBIT, SERVER_CORE)], POLICY_S,
        seed, point_s=0.5,
    )  # fmt: skip
    return {**_told(name, record), "between": [f"uneven/{seed}/{which}" for which in (0, 1)]}


def _one(seed: int) -> dict[str, Any]:
    """One worker alone with a full core: the loss by batches, without anybody's delay."""
    places = [WorkerPlace(None, None, WORKER_CORE)]
    record = run(TRAININGS[POLICY_NETWORK], synchrony_of("bsp"), places, seconds=5.0, seed=seed, point_s=0.1)
    return _told("one", record)


def _told(name: str, record: RunRecord) -> dict[str, Any]:
    shares = [worker.share for worker in record.workers]
    return {
        "policy": name, "seed": record.seed, "seconds_s": record.seconds,
        "batches": [one.batches for one in shares], "samples": [one.samples for one in shares],
        "commits": [one.commits for one in shares],
        "waiting_s": [one.waiting_s for one in shares], "communication_s": [one.communication_s for one in shares],
        "dropped": [one.dropped for one in shares],
        "batch_s": [worker.batch_s for worker in record.workers],
        "spread": [worker.spread for worker in record.workers],
        "staleness": [one.staleness_mean for one in shares],
        "server_busy_s": record.servers[0].share.busy_s, "queue": record.servers[0].share.queue,
        "loss": [[round(p.at_s, 3), p.samples, p.held_out_loss] for p in record.losses],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
