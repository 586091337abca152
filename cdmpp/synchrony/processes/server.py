"""A parameter server: a process that holds a part of the parameters, one thread for each worker.

A worker sends its update and gets the parameters back over one connection. Between the two the server asks the process
that started the job when and with what weight the update counts, and when the worker may have the parameters.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

import torch

from cdmpp.synchrony.processes.child import begin
from cdmpp.synchrony.processes.namespaces import Place
from cdmpp.synchrony.processes.wire import receive, tell, told, view

_EVENTS = {"set": "set", "add": "added", "move": "moved"}
"""What a thread says once it has done what it was told."""


class Shard:
    """The parameters of one server, shape (count,), and what moves them. One thread at a time changes or reads them."""

    def __init__(self, count: int) -> None:
        self.values, self.gathered, self.velocity = (torch.zeros(count) for _ in range(3))
        self.busy_s = 0.0
        """Seconds spent on adding, moving and copying."""
        self._lock = threading.Lock()

    def set(self, values: torch.Tensor) -> None:
        """Take the initial parameters."""
        with self._busy():
            self.values.copy_(values)

    def add(self, update: torch.Tensor, weight: float) -> None:
        """Gather ``weight`` times ``update``."""
        with self._busy():
            self.gathered.add_(update, alpha=weight)

    def move(self, momentum: float, nesterov: bool) -> None:
        """Move the parameters by what was gathered, as ``cdmpp.steps.decisions.Decisions`` says."""
        with self._busy():
            if momentum:
                self.velocity.mul_(momentum).add_(self.gathered)
            if not momentum or nesterov:
                self.values.add_(self.gathered)
            if momentum:
                self.values.add_(self.velocity, alpha=momentum if nesterov else 1.0)
            self.gathered.zero_()

    def copy_to(self, room: torch.Tensor) -> None:
        """Copy the parameters."""
        with self._busy():
            room.copy_(self.values)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        with self._lock:
            begin_s = time.perf_counter()
            yield
            self.busy_s += time.perf_counter() - begin_s


def serve(pipe: Connection, threads: Sequence[Connection], place: Place | None, core: int | None) -> None:
    """Run one server until the process that started it is gone; ``threads``: a pipe for each worker."""
    begin(place, core)
    address = place.address if place else "127.0.0.1"
    with socket.create_server((address, 0), backlog=len(threads)) as listener:
        try:
            tell(pipe, address=listener.getsockname())
            shard = Shard(told(pipe)["count"])
            for _ in threads:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                number = bytearray(4)
                receive(connection, memoryview(number))
                ends = (connection, threads[int.from_bytes(number, "little")], shard)
                threading.Thread(target=_attend, args=ends, daemon=True).start()
            room = torch.zeros_like(shard.values)
            while told(pipe):
                shard.copy_to(room)
                pipe.send_bytes(view(room))
        except (EOFError, ConnectionError):
            # Threads wait in the kernel for workers that are gone too. Nothing is lost: what a server knows was told.
            os._exit(0)


def _attend(connection: socket.socket, pipe: Connection, shard: Shard) -> None:
    """Serve one worker: take its update, do with it what the pipe says, send the parameters."""
    update, answer = torch.zeros_like(shard.values), torch.zeros_like(shard.values)
    try:
        while True:
            receive(connection, view(update))
            tell(pipe, event="arrived")
            while (order := told(pipe))["do"] != "send":
                if order["do"] == "set":
                    shard.set(update)
                elif order["do"] == "add":
                    shard.add(update, order["weight"])
                else:
                    shard.move(order["momentum"], order["nesterov"])
                tell(pipe, event=_EVENTS[order["do"]], busy_s=shard.busy_s)
            shard.copy_to(answer)
            connection.sendall(view(answer))
    except (EOFError, OSError):
        pass
