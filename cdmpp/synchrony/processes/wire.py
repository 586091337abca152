"""Bytes between a worker and its servers over TCP, and short messages between processes and their coordinator."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

CHUNK = 1 << 20
_TRIES, _PAUSE_S = 200, 0.05


def view(vector: torch.Tensor) -> memoryview:
    """Return the bytes of a vector in place."""
    return vector.numpy().data.cast("B")


def call(address: str, port: int, worker: int) -> socket.socket:
    """Connect to a server and say which worker this is.

    Raises:
        OSError: nobody listens there.
    """
    for number in range(_TRIES):
        try:
            connection = socket.create_connection((address, port), timeout=5)
            break
        except OSError:
            if number == _TRIES - 1:
                raise
            time.sleep(_PAUSE_S)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(worker.to_bytes(4, "little"))
    return connection


def receive(connection: socket.socket, room: memoryview) -> None:
    """Fill ``room``.

    Raises:
        EOFError: the other end closed the connection before.
    """
    at = 0
    while at < len(room):
        count = connection.recv_into(room[at : at + CHUNK])
        if not count:
            raise EOFError
        at += count


def exchange(
    connections: Sequence[socket.socket], outgoing: Sequence[memoryview], incoming: Sequence[memoryview]
) -> None:
    """Send to every server at once, and take what each one answers as soon as it does.

    Raises:
        EOFError: a server closed its connection before.
    """
    with selectors.DefaultSelector() as selector:
        for number, connection in enumerate(connections):
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_WRITE, number)
        sent, taken = [0] * len(connections), [0] * len(connections)
        while selector.get_map():
            for key, _ in selector.select():
                number, connection = key.data, connections[key.data]
                if key.events == selectors.EVENT_WRITE:
                    sent[number] += connection.send(outgoing[number][sent[number] : sent[number] + CHUNK])
                    if sent[number] == len(outgoing[number]):
                        selector.modify(connection, selectors.EVENT_READ, number)
                    continue
                count = connection.recv_into(incoming[number][taken[number] : taken[number] + CHUNK])
                if not count:
                    raise EOFError
                taken[number] += count
                if taken[number] == len(incoming[number]):
                    selector.unregister(connection)


def tell(pipe: Connection, **message: Any) -> None:
    """Send one message as JSON."""
    pipe.send_bytes(json.dumps(message).encode())


def told(pipe: Connection) -> dict[str, Any]:
    """Wait for one message.

    Raises:
        EOFError: the other process is gone.
    """
    return json.loads(pipe.recv_bytes())
