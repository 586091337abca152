"""Measure real jobs of workers and parameter servers on this machine: a grid, and policies on uneven workers.

python -m benchmarks.synchrony.measure alone|grid|policies [--only TEXT]

    alone      seconds of a batch of one worker at each CPU share, and what the links carry
    grid       equal workers: workers x CPU share x rate x batches between commits x servers, two networks
    policies   four uneven workers under each policy, five seeds

Adds what docs/measured/runs/synchrony.json lacks; a run that was stopped goes on where it was. Needs root, `ip`, `tc`,
a control group of the CPU, and two cores on which nothing else runs.
"""

from __future__ import annotations

import argparse
import signal
import sys
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
    UNEVEN_MBIT,
    WORKER_CORE,
    Cell,
    steady_rate,
    uneven_places,
)
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
_LEAST_S, _MOST_S, _ROUNDS = 5.0, 12.0, 16


def runs(path: Path = RUNS) -> dict[str, dict[str, Any]]:
    """What was measured, by name."""
    return read_json(path) if path.exists() else {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("alone", "grid", "policies"))
    parser.add_argument("--only", default="", help="runs with this text in their name")
    parser.add_argument("--into", type=Path, default=RUNS, help="file of the runs")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are deleted then too
    if reason := namespaces.why_not() or quota.why_not():
        print(f"cannot measure here: {reason}", file=sys.stderr)
        return 2
    asked.into.parent.mkdir(parents=True, exist_ok=True)
    found = runs(asked.into)
    for name, measure in {"alone": _alone, "grid": lambda: _grid(found), "policies": _policies}[asked.part]():
        if asked.only in name and name not in found:
            found[name] = measure()
            write_json(asked.into, found)
            print(name, {key: value for key, value in found[name].items() if key.endswith("_s")}, flush=True)
    return 0


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


def _grid(alone: dict[str, dict[str, Any]]) -> Measured:
    for cell in GRID:
        name = "grid/" + "/".join(
            f"{value:g}" if isinstance(value, float) else str(value) for value in cell.to_dict().values()
        )
        yield name, lambda cell=cell: _cell(cell, alone)


def _cell(cell: Cell, alone: dict[str, dict[str, Any]]) -> dict[str, Any]:
    known = alone[f"alone/{cell.network}/{cell.share:g}"]
    round_s = cell.every * known["batch_s"] + 16e-6 * known["parameter_bytes"] / cell.mbit * max(1, cell.workers / 2)
    seconds = float(np.clip(_ROUNDS * round_s, _LEAST_S, _MOST_S))
    synchrony = synchrony_of(f"async:{cell.every}")
    record = run(TRAININGS[cell.network], synchrony, cell.worker_places, cell.server_places, seconds, point_s=seconds)
    return {"cell": cell.to_dict(), **_rates(record)}


def _rates(record: RunRecord) -> dict[str, Any]:
    rates = [
        steady_rate([(one.at_s, one.batches) for one in worker.commits]) * worker.share.samples / worker.share.batches
        for worker in record.workers
    ]
    return {
        "seconds_s": record.seconds,
        "samples_per_s": sum(rates),
        "commits": [worker.share.commits for worker in record.workers],
        "batch_s": [worker.batch_s for worker in record.workers],
        "waiting_s": [worker.share.waiting_s for worker in record.workers],
        "communication_s": [worker.share.communication_s for worker in record.workers],
        "server_busy_s": [server.share.busy_s for server in record.servers],
        "queue": record.servers[0].share.queue,
    }


def _policies() -> Measured:
    for seed in SEEDS:
        for name in POLICIES:
            yield f"policies/{name}/{seed}", lambda name=name, seed=seed: _policy(name, seed)
        yield f"policies/one/{seed}", lambda seed=seed: _one(seed)


def _policy(name: str, seed: int) -> dict[str, Any]:
    record = run(
        TRAININGS[POLICY_NETWORK], POLICIES[name], uneven_places(), [ServerPlace(UNEVEN_MBIT, SERVER_CORE)], POLICY_S,
        seed, point_s=0.5,
    )  # fmt: skip
    return _told(name, record)


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
        "batch_s": [worker.batch_s for worker in record.workers],
        "staleness": [one.staleness_mean for one in shares],
        "server_busy_s": record.servers[0].share.busy_s, "queue": record.servers[0].share.queue,
        "loss": [[round(p.at_s, 3), p.samples, p.held_out_loss] for p in record.losses],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
