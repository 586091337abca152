"""The child processes of ``derive``, seen from the parent: one JSON line to them, lines of answers from them."""

from __future__ import annotations

import json
import logging
import os
import selectors
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError

log = logging.getLogger(__name__)

START_LIMIT_S = 300.0
"""For importing TVM and, once a machine, compiling the native extractor."""
_LOOK_S = 0.2
_TAIL = 12
"""Last lines of a child's own messages that are kept."""
_COMMAND = [sys.executable, "-m", "cdmpp.data.derive_worker"]
_READ_BY_CHILDREN = ("HOME", "PATH", "PYTHONPATH")


class Worker:
    """A child with TVM. It may crash or hang on a program: its parent goes on, or ends it."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}
        # The child must import the same cdmpp as we do, installed or not.
        root = str(Path(__file__).resolve().parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        self.timed_out = False
        self._ready = False
        self._buffer = bytearray()
        self._messages: deque[str] = deque(maxlen=_TAIL)
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def answers(self, request: Mapping[str, Any], stop: threading.Event, limit_s: float) -> Iterator[dict[str, Any]]:
        """What the child answers, up to the line that says ``last``; fewer where it died or ``stop`` was set.

        ``limit_s`` is the longest wait for one line; past it the child is killed and ``timed_out`` set.

        Raises:
            DataError: the child could not start, or reports that it cannot go on (a full disk, no TVM).
        """
        assert self.process.stdin is not None
        if not self._ready:
            self._await_start(stop)
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            return
        while (line := self._line(stop, limit_s)) is not None:
            answer = json.loads(line)
            if "error" in answer:
                raise DataError(answer["error"])
            yield answer
            if answer.get("last"):
                return

    def fault(self, doing: str, limit_s: float) -> tuple[str, bool]:
        """Why the child is gone, and whether that will be so again: not of time that ran out, nor of a kill."""
        if self.timed_out:
            return f"{doing} took more than {limit_s:g} s", False
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            code = 0
        if code == -9:
            return f"{doing} was killed from outside, for memory perhaps", False
        return f"TVM crashed while {doing} this program", True

    def close(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except OSError:
            pass
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _await_start(self, stop: threading.Event) -> None:
        line = self._line(stop, START_LIMIT_S)
        if line is None:
            if stop.is_set():
                return
            said = next((text for text in reversed(self._messages) if text.strip()), "it said nothing")
            raise DataError(f"the process that lowers programs with TVM did not start: {said.strip()}")
        answer = json.loads(line)
        if "error" in answer:
            raise DataError(answer["error"])
        for text in answer.get("warnings", ()):
            log.warning("%s", text)
        self._ready = True

    def _line(self, stop: threading.Event, limit_s: float) -> bytes | None:
        """One line of the child's answers; None where it is gone."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if stop.is_set() or time.monotonic() > deadline:
                    self.timed_out = not stop.is_set()
                    self.process.kill()
                    return None
                if selector.select(_LOOK_S):
                    data = os.read(self.process.stdout.fileno(), 1 << 16)
                    if not data:
                        return None
                    self._buffer += data
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        return line

    def _listen(self) -> None:
        """Take what TVM prints, so that the child is never stopped by a full pipe."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            text = line.decode(errors="replace").rstrip()
            self._messages.append(text)
            log.debug("%s", text)


_spare: tuple[tuple[int, dict[str, str]], Worker] | None = None
_lock = threading.Lock()


def take_worker() -> Worker:
    """The spare child, or a new one. Starting takes a second, so ``start_worker`` early where one will be needed."""
    global _spare
    with _lock:
        held, _spare = _spare, None
    if held is not None:
        if held[0] == _owner() and held[1].alive:
            return held[1]
        if held[0][0] == os.getpid():  # of a forked parent it is not ours to end
            held[1].close()
    return Worker()


def give_back(worker: Worker) -> None:
    """Keep ``worker`` for the next call, where none is kept yet."""
    global _spare
    with _lock:
        if _spare is None and worker.alive:
            _spare = (_owner(), worker)
            return
    worker.close()


def start_worker() -> None:
    """Begin to start a spare child."""
    give_back(take_worker())


def _owner() -> tuple[int, dict[str, str]]:
    """What a child depends on: it reads these once."""
    read = {key: value for key, value in os.environ.items() if key.startswith("CDMPP_") or key in _READ_BY_CHILDREN}
    return os.getpid(), read
