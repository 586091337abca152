"""What an emulated link carries: bytes of TCP a second between two ranks, whatever rate was asked of the kernel.

Above about a Gbit/s a token bucket falls short of its rate, and two streams against each other of that of one.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from cdmpp.synchrony.processes.namespaces import Place

PORT, SECONDS, LIMIT_S = 29500, 1.0, 30
_WAYS = {"one_way": False, "both_ways": True}


def carried_mbit(places: Sequence[Place], pins: Sequence[int]) -> dict[str, float]:
    """Mbit/s from the first place to the second, alone (``one_way``) and against a stream back (``both_ways``).

    Raises:
        RuntimeError: an end that failed, with its last words, or that did not end.
    """
    found = {}
    for name, is_both in _WAYS.items():
        said = [places[0].address, str(int(is_both))]
        ends = [
            subprocess.Popen(
                [*place.command, "taskset", "-c", str(core), sys.executable, "-m", __spec__.name, role, *said],
                cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for role, place, core in zip(("listens", "calls"), places[:2], pins[:2], strict=True)
        ]  # fmt: skip
        rates = [rate for rate in _told(ends) if rate > 0]
        if not rates:
            raise RuntimeError("a link could not be timed: nothing arrived")
        found[name] = sum(rates) / len(rates)
    return found


def _told(ends: Sequence[subprocess.Popen[str]]) -> list[float]:
    """What each end prints; none of them outlives this."""
    try:
        told = [end.communicate(timeout=LIMIT_S) for end in ends]
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"a link could not be timed within {LIMIT_S} s") from None
    finally:
        for end in ends:
            end.kill()
            end.wait()
    for end, (_, words) in zip(ends, told, strict=True):
        if end.returncode:
            raise RuntimeError(f"a link could not be timed: {words[-500:]}")
    return [float(out) for out, _ in told]


def _end(role: str, address: str, is_both: bool) -> float:
    """Mbit/s that this end received; 0 where it only sends."""
    connection = _listen(address) if role == "listens" else _call(address)
    sends, receives = role == "calls" or is_both, role == "listens" or is_both
    sender = threading.Thread(target=_send, args=(connection,))
    if sends:
        sender.start()
    rate = _receive(connection) if receives else 0.0
    if sends:
        sender.join()
    connection.close()
    return rate


def _listen(address: str) -> socket.socket:
    with socket.create_server((address, PORT)) as server:
        return server.accept()[0]


def _call(address: str) -> socket.socket:
    for _ in range(100):
        try:
            return socket.create_connection((address, PORT), timeout=5)
        except OSError:
            time.sleep(0.05)
    return socket.create_connection((address, PORT), timeout=5)


def _send(connection: socket.socket) -> None:
    words, end_s = bytes(1 << 18), time.perf_counter() + SECONDS
    while time.perf_counter() < end_s:
        connection.sendall(words)
    connection.shutdown(socket.SHUT_WR)


def _receive(connection: socket.socket) -> float:
    room = bytearray(1 << 20)
    connection.recv_into(room)  # the first bytes are waited for, not timed
    begin_s, received = time.perf_counter(), 0
    while count := connection.recv_into(room):
        received += count
    return 8e-6 * received / (time.perf_counter() - begin_s)


if __name__ == "__main__":
    print(_end(sys.argv[1], sys.argv[2], sys.argv[3] == "1"))
