"""Child processes that may die: a crash or a hang costs the request at hand and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "cdmpp.measure.worker")
_START_LIMIT_S = 300.0
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

Reply = dict[str, Any]


class Worker:
    """One ``cdmpp.measure.worker`` process, started when first needed and again after every crash or hang.

    A reply that holds ``cause`` is a failure: ``crash``, ``timeout`` or what the operation itself reported.
    """

    def __init__(self, cores: Sequence[int] = (), ready: dict[str, Any] | None = None) -> None:
        """``cores``: processors that the process is pinned to, one TVM thread on each; none leaves it free.

        ``ready``: the first request, which loads what the later ones need; None imports TVM.
        """
        self.cores = tuple(cores)
        self.ready = ready or {"op": "ready"}
        self.deadline = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("the worker is not running: call start first")
        return self._connection

    def start(self) -> None:
        """Start the process unless it runs, and wait until it is ready."""
        if self._process is not None and self._process.poll() is None:
            return
        self.stop()
        ours, theirs = Pipe()
        root = str(Path(__file__).resolve().parents[2])
        search = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
        threads = str(max(1, len(self.cores)))
        with theirs:
            self._process = subprocess.Popen(
                [*COMMAND, str(theirs.fileno()), ",".join(map(str, self.cores))],
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **_ENVIRONMENT, "TVM_NUM_THREADS": threads, "PYTHONPATH": search},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a worker that Ctrl-C killed would look like a program that crashes
            )
        self._connection = ours
        self.send(self.ready, _START_LIMIT_S)
        reply = self.receive()
        if "cause" in reply:
            raise RuntimeError(f"the measuring worker does not start: {reply['cause']} {reply.get('message', '')}")

    def stop(self) -> None:
        """Kill the process, if any."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None

    def request(self, message: dict[str, Any], limit_s: float) -> Reply:
        """Send one request and wait for its reply, at most ``limit_s`` seconds."""
        self.start()
        self.send(message, limit_s)
        return self.receive()

    def send(self, message: dict[str, Any], limit_s: float) -> None:
        self.deadline = time.monotonic() + limit_s
        try:
            self.connection.send_bytes(json.dumps(message).encode())
        except OSError:
            pass  # it has died; receive says so

    def receive(self) -> Reply:
        """Reply to the last request; kills the process when the deadline has passed."""
        try:
            if not self.connection.poll(max(0.0, self.deadline - time.monotonic())):
                self.stop()
                return {"cause": "timeout"}
            reply = json.loads(self.connection.recv_bytes())
            if reply.pop("restart", False):  # the process says itself that it is of no more use
                self.stop()
            return reply
        except (EOFError, OSError):
            code = self._process.wait() if self._process else None
            self.stop()
            return {"cause": "crash", "message": f"worker exit status {code}"}


def run_many(
    workers: Sequence[Worker], messages: Iterable[dict[str, Any]], limit_s: float
) -> Iterator[tuple[int, Reply]]:
    """Spread ``messages`` over ``workers``, each drawn when one is free; yields ``(index, reply)`` as they come."""
    waiting = enumerate(messages)
    busy: dict[int, int] = {}
    while True:
        for slot, worker in enumerate(workers):
            if slot in busy or (drawn := next(waiting, None)) is None:
                continue
            busy[slot], message = drawn
            worker.start()
            worker.send(message, limit_s)
        if not busy:
            return
        nearest = min(workers[slot].deadline for slot in busy)
        answered = wait([workers[slot].connection for slot in busy], max(0.0, nearest - time.monotonic()))
        now = time.monotonic()
        for slot in list(busy):
            worker = workers[slot]
            if worker.connection in answered or worker.deadline <= now:
                yield busy.pop(slot), worker.receive()
