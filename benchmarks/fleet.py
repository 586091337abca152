"""What a fleet's queue and held sessions cost a job, against measuring over RPC without them: one tracker, one server.

A job of ``PROGRAMS`` programs takes two visits to each. Without a queue every visit opens a session of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from timing import finish

from cdmpp.errors import CdmppError
from cdmpp.measure.build import arguments_of, build
from cdmpp.measure.fleet import session
from cdmpp.measure.fleet.job import Job
from cdmpp.measure.fleet.queue import JobQueue
from cdmpp.measure.fleet.tracker import NO_SERVERS, Tracker
from cdmpp.measure.protocol import Timed
from cdmpp.measure.reference_kernels import WORKLOADS
from cdmpp.measure.remote import time_remote

JOBS, LEASE, ROUNDS, VISITS, PROGRAMS = 10_000, 12, 5, 12, 16


def main() -> None:
    finish({**queue(), **visits(), "jobs": JOBS, "leased_at_once": LEASE, "programs": PROGRAMS})


def queue() -> dict[str, float]:
    """Milliseconds a job: queued, leased and ended, on this disk, each change waited for."""
    folder = Path(tempfile.mkdtemp())
    found = JobQueue(folder, 5)
    jobs = [Job.sampled("epyc-genoa", f"{n:016x}", PROGRAMS, 0) for n in range(JOBS)]
    add_s = _taken(lambda: found.add(jobs))
    rounds = []
    for _ in range(40):
        rounds.append(_taken(lambda: found.finish(dict.fromkeys(found.lease("epyc-genoa", LEASE), PROGRAMS))))
    shutil.rmtree(folder)
    return {"queued_ms": 1e3 * add_s / JOBS, "leased_and_ended_ms": 1e3 * statistics.median(rounds) / LEASE}


def visits() -> dict[str, float]:
    """Milliseconds a visit: with a session of its own, and in one that is held; and to open that."""
    with served() as tracker, tempfile.TemporaryDirectory() as scratch:
        workload, _ = WORKLOADS["compute"]
        item = Timed("visited", arguments_of(workload), Path(scratch) / "visited.so")
        build(item.build_request(workload, "[[],[]]", {"kind": "llvm", "num-cores": 1}))
        own = item.timing_request("time_rpc", tracker=tracker, key="board")
        held = item.timing_request("time_held")
        times: dict[str, list[float]] = {"own": [], "held": [], "open": []}
        for _ in range(ROUNDS):
            for _ in range(VISITS):
                wait_until_free(tracker)
                times["own"].append(_taken(lambda: _timed(time_remote(own))))
            wait_until_free(tracker)
            times["open"].append(_taken(lambda: _open(tracker)))
            times["held"] += [_taken(lambda: _timed(session.time_held(held))) for _ in range(VISITS)]
            session.close_session()
    return {f"{name}_visit_ms": 1e3 * statistics.median(of_it) for name, of_it in times.items()}


def _open(address: str) -> None:
    with Tracker(address) as tracker:
        offer = tracker.request("board")
    assert offer is not None
    session.open_session(offer._asdict())


def _timed(reply: dict[str, Any]) -> None:
    assert "samples" in reply, reply


def _taken(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def wait_until_free(address: str) -> None:
    """A server that was let go of is back at the tracker some milliseconds later."""
    while True:
        try:
            with Tracker(address) as tracker:
                if tracker.servers().get("board", NO_SERVERS).free:
                    return
        except CdmppError:
            time.sleep(0.2)
        time.sleep(0.005)


@contextmanager
def served() -> Iterator[str]:
    """Start a tracker and a server; yields the tracker's address once both answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"127.0.0.1:{port}"
    words = [
        ["rpc_tracker", "--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1)],
        ["rpc_server", "--host", "127.0.0.1", "--port", "9700", "--port-end", "9900", "--tracker", address],
    ]
    words[1] += ["--key", "board"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    processes = [
        subprocess.Popen([sys.executable, "-m", f"tvm.exec.{name}", *of_it], **quiet) for name, *of_it in words
    ]
    try:
        wait_until_free(address)
        yield address
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    main()
