"""Child processes that may die: a crash or a hang costs the request at hand and nothing else.

Parent and child exchange one JSON object a message over a pipe, so a caller's script needs no ``__main__`` guard.
Standard library only: measurement kits carry this file.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

from cdmpp.errors import CdmppError

log = logging.getLogger(__name__)

START_LIMIT_S = 300.0  # for importing TVM
_LEAST_WAIT_S = 0.05  # for a core, that is worth another look
_END_S = 0.5
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
_READ_BY_CHILDREN = ("HOME", "PATH", "PYTHONPATH")

Request = dict[str, Any]
Reply = dict[str, Any]
Operation = Callable[[Request], Reply]


class Worker:
    """A worker is one child process, started when first needed and again after every crash or hang.

    A reply that holds ``cause`` is a failure: ``crash`` (with the exit ``status``), ``timeout`` or what the operation
    itself reported.
    """

    def __init__(
        self, command: Sequence[str], cores: Sequence[int] = (), ready: Request | None = None, group: bool = False
    ) -> None:
        """Describe the process; nothing is started yet.

        ``command`` are arguments of Python, such as ``("-m", MODULE)``, of a program that calls ``serve``. ``cores``
        pin it, one TVM thread on each. ``ready`` is the first request, which loads what the later ones need; ``said``
        is the reply to it. ``group``: whether all processes that it starts end with it.
        """
        self.command, self.cores, self.ready = tuple(command), tuple(cores), ready or {"op": "ready"}
        self.group, self.said = group, Reply()
        self.connection: Connection
        self.deadline = 0.0
        self._queued_s = 0.0
        self.surroundings: tuple[int, dict[str, str]] = (0, {})
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: IO[bytes]
        self._starting = False
        self._waiting: tuple[Request, float] | None = None

    @property
    def running(self) -> bool:
        """Return True while the process lives."""
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Begin to start the process, unless it runs, and go on."""
        if self.running:
            return
        self.stop()
        self.connection, child_end = Pipe()
        # The child must import the same cdmpp as we do, installed or not.
        root, threads = str(Path(__file__).resolve().parents[2]), str(max(1, len(self.cores)))
        search = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
        self.surroundings, self._messages = _surroundings(), tempfile.TemporaryFile()  # noqa: SIM115
        with child_end:
            self._process = subprocess.Popen(
                [sys.executable, *self.command, str(child_end.fileno()), ",".join(map(str, self.cores))],
                pass_fds=(child_end.fileno(),),
                env={**os.environ, **_ENVIRONMENT, "TVM_NUM_THREADS": threads, "PYTHONPATH": search},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._messages,
                process_group=0 if self.group else None,
            )
        self._starting, self._waiting = True, None
        self._write(self.ready, START_LIMIT_S)

    def start(self) -> None:
        """Do as ``launch``, and wait until the process is ready; ``CdmppError`` where it does not start."""
        self.launch()
        if self._starting:
            self.advance()

    def kill(self) -> None:
        """Kill the process, if any; whoever waits for its reply is told so. May be called from another thread."""
        if (process := self._process) is not None:
            process.kill()
            if self.group:  # the process itself may be gone, and what it started not
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Kill the process, if any."""
        if self._process is not None:
            self.kill()
            self._process.wait()
            self.connection.close()
            self._messages.close()
        self._process, self._starting = None, False

    def request(self, message: Request, limit_s: float) -> Reply:
        """Send one request and wait for its reply, at most ``limit_s`` seconds after the process is ready."""
        self.send(message, limit_s)
        while (reply := self.advance()) is None:
            pass
        return reply

    def send(self, message: Request, limit_s: float) -> None:
        """Hand over one request; a process that is still starting gets it once it is ready."""
        self.launch()
        if self._starting:
            self._waiting = message, limit_s
        else:
            self._write(message, limit_s)

    def advance(self) -> Reply | None:
        """Return the reply to the last request; None where the process got ready and has the request now.

        Kills the process at its deadline, to which is added what it waited for a core that others used: what a busy
        machine finishes is what a quiet one does. None then too. ``CdmppError``: it does not start.
        """
        try:
            if self.connection.poll(max(0.0, self.deadline - time.monotonic())):
                reply: Reply = json.loads(self.connection.recv_bytes())
            elif (waited_s := self._queued() - self._queued_s) > _LEAST_WAIT_S:
                self.deadline, self._queued_s = self.deadline + waited_s, self._queued_s + waited_s
                return None
            else:
                reply = {"cause": "timeout", "restart": True}
        except (EOFError, OSError):
            status = self._process.wait() if self._process else None
            reply = {"cause": "crash", "message": f"worker exit status {status}", "status": status, "restart": True}
        if self._starting:
            self._check_started(reply)
            return None
        if reply.pop("restart", False):  # the process is gone, or says itself that it is of no more use
            self.stop()
        return reply

    def _check_started(self, reply: Reply) -> None:
        if "cause" in reply:
            self._messages.seek(0)
            lines = self._messages.read().decode(errors="replace").split("\n")
            said = next((line.strip() for line in reversed(lines) if line.strip()), "")
            self.stop()
            reason = said if said and reply["cause"] == "crash" else reply.get("message", reply["cause"])
            raise CdmppError(f"a worker process did not start: {reason}")
        self._starting, self.said = False, reply
        if self._waiting is not None:
            self._write(*self._waiting)

    def _queued(self) -> float:
        """Seconds that the process was ready to run and did not; 0 where the system does not say."""
        try:
            told = Path(f"/proc/{self._process.pid}/schedstat").read_text() if self._process else ""
            return 1e-9 * int(told.split()[1])
        except (OSError, ValueError, IndexError):
            return 0.0

    def _write(self, message: Request, limit_s: float) -> None:
        self.deadline, self._queued_s = time.monotonic() + limit_s, self._queued()
        with suppress(OSError):  # it has died; reading says so
            self.connection.send_bytes(json.dumps(message).encode())


def run_many(workers: Sequence[Worker], messages: Iterable[Request], limit_s: float) -> Generator[tuple[int, Reply]]:
    """Spread ``messages`` over ``workers``, each drawn when one is free; yields ``(index, reply)`` as they come.

    Workers that are busy when the caller stops listening are ended.
    """
    waiting = enumerate(messages)
    busy: dict[Worker, int] = {}
    try:
        while True:
            for worker in workers:
                if worker not in busy and (drawn := next(waiting, None)) is not None:
                    busy[worker], message = drawn
                    worker.send(message, limit_s)
            if not busy:
                return
            nearest = min(worker.deadline for worker in busy)
            answered = wait([worker.connection for worker in busy], max(0.0, nearest - time.monotonic()))
            late = [worker.connection for worker in busy if worker.deadline <= time.monotonic()]
            for worker in list(busy):
                if worker.connection in (*answered, *late) and (reply := worker.advance()) is not None:
                    yield busy.pop(worker), reply
    finally:
        for worker in busy:
            worker.stop()


_spare: list[Worker] = []
"""Processes that nobody uses now: starting one takes some seconds."""
_KEPT = 2


def take_worker(command: Sequence[str], ready: Request | None = None) -> Worker:
    """Take a kept process of ``command``, or a new one that begins with ``ready``.

    ``take_worker(c).launch()`` early saves waiting later.
    """
    while _spare:
        worker = _spare.pop()
        if worker.running and (worker.command, worker.surroundings) == (tuple(command), _surroundings()):
            return worker
        if worker.surroundings[0] == os.getpid():  # of a forked parent it is not ours to end
            worker.stop()
    return Worker(command, ready=ready)


def keep_worker(worker: Worker) -> None:
    """Keep ``worker`` for the next ``take_worker`` where few are kept yet, else end it."""
    if worker.running and len(_spare) < _KEPT:
        _spare.append(worker)
    else:
        worker.stop()


def _surroundings() -> tuple[int, dict[str, str]]:
    """Variables that a child depends on: it reads these once."""
    read = {key: value for key, value in os.environ.items() if key.startswith("CDMPP_") or key in _READ_BY_CHILDREN}
    return os.getpid(), read


def serve(operations: Mapping[str, Operation]) -> None:
    """Be the child: answer requests by their ``op`` until the parent is gone. Descriptor and cores end ``sys.argv``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a worker that Ctrl-C killed would look like a program that crashes
    descriptor, cores = sys.argv[-2:]
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    connection = Connection(int(descriptor))
    threading.Thread(target=_end_with_parent, args=(int(descriptor),), daemon=True).start()
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            reply = operations[request["op"]](request)
        except Exception as error:  # noqa: BLE001 - whatever went wrong costs this request only
            text = str(error) if isinstance(error, CdmppError) else f"{type(error).__name__}: {error}"
            reply = {"cause": request["op"] + " error", "message": text[-500:]}
        connection.send_bytes(json.dumps(reply).encode())
        with open(os.devnull, "wb") as nowhere:  # what TVM says once it is ready is for nobody
            os.dup2(nowhere.fileno(), 2)


def _end_with_parent(descriptor: int) -> None:
    """Wait until nobody holds the other end, then end at once: what the process works on is for nobody."""
    watch = select.poll()
    watch.register(descriptor, 0)
    while not any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in watch.poll()):
        pass
    time.sleep(_END_S)  # whoever waits for a request ends by itself
    os._exit(1)
