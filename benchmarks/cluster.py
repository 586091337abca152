"""Ten thousand small tasks on a Dask cluster of this machine, against the processes that do them without, in turns."""

from __future__ import annotations

import hashlib
import logging
import sys
import time
from pathlib import Path
from typing import Any

import distributed
import psutil
from timing import finish

from cdmpp.execute.executor import executing, replies_of
from cdmpp.execute.work import Work
from cdmpp.platform.workers import Request, serve

TASKS, PROCESSES, TURNS = 10_000, 2, 2
LENGTHS_MS = (1.0, 3.0)


def main() -> None:
    rounds_per_ms = _rounds_per_ms()
    with distributed.LocalCluster(
        n_workers=PROCESSES, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL
    ) as cluster:  # fmt: skip
        places = {"local": "local", "dask": cluster.scheduler_address.replace("tcp://", "dask://")}
        finish([_row(places, length_ms, rounds_per_ms) for length_ms in LENGTHS_MS])


def _row(places: dict[str, str], length_ms: float, rounds_per_ms: float) -> dict[str, Any]:
    rounds = int(length_ms * rounds_per_ms)
    best: dict[str, dict[str, float]] = {}
    for _ in range(TURNS):
        for name, place in places.items():
            told = _seconds(place, rounds)
            best[name] = {key: min(value, best.get(name, told)[key]) for key, value in told.items()}
    return {"tasks": TASKS, "length_ms": length_ms, **best}


def _seconds(place: str, rounds: int) -> dict[str, float]:
    """Wall and CPU seconds of all tasks, of all processes; those that do the work have started."""
    work = Work((str(Path(__file__).resolve()),), 60.0, PROCESSES)
    with executing(place):
        for count in (20, TASKS):
            begun_s, before_s = time.perf_counter(), _cpu_s()
            requests = ({"op": "work", "value": value, "rounds": rounds} for value in range(count))
            found = dict(replies_of(work, requests, count))
            assert sorted(found) == list(range(count)) and found[7] == compute({"value": 7, "rounds": rounds})
        return {"wall_s": time.perf_counter() - begun_s, "cpu_s": _cpu_s() - before_s}


def _cpu_s() -> float:
    own = psutil.Process()
    times = [one.cpu_times() for one in (own, *own.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def compute(request: Request) -> dict[str, Any]:
    """Hash a number again and again."""
    digest = str(request["value"]).encode()
    for _ in range(request["rounds"]):
        digest = hashlib.sha256(digest).digest()
    return {"found": digest.hex()}


def _rounds_per_ms() -> float:
    begun_s = time.process_time()
    compute({"value": 0, "rounds": 200_000})
    return 200_000 / (1e3 * (time.process_time() - begun_s))


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[-2].isdecimal():  # a child of either
        serve({"ready": lambda _: {}, "work": compute})
    else:
        main()
