"""What a tracker says, and everything else that may answer at its address."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from cdmpp.errors import CdmppError
from cdmpp.measure.fleet import tracker as tracker_module
from cdmpp.measure.fleet.tracker import NO_SERVERS, ServerOffer, Servers, Tracker

MAGIC = struct.pack("<i", 0x2F271)
SUMMARY = {
    "queue_info": {"board": {"free": 1, "pending": 0}, "old": {"free": 0, "pending": 0}},
    "server_info": [{"key": "server:board", "addr": ["10.0.0.1", 9090]}, {"key": "server:board", "addr": ["b", 1]}],
}


def packed(value: object) -> bytes:
    text = json.dumps(value).encode()
    return struct.pack("<i", len(text)) + text


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """An address where each message is answered by the next of the given bytes; None: by silence."""
    monkeypatch.setattr(tracker_module, "_REPLY_LIMIT_S", 0.3)
    opened: list[socket.socket] = []

    def serve(listener: socket.socket, answers: list[bytes | None]) -> None:
        connection, _ = listener.accept()
        opened.append(connection)
        for answer in answers:
            if not connection.recv(4096):
                return
            if answer is not None:
                connection.sendall(answer)
        if answers[-1:] != [None]:
            connection.close()

    def start(*answers: bytes | None) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        opened.append(listener)
        threading.Thread(target=serve, args=(listener, list(answers)), daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for one in opened:
        one.close()


def test_servers_are_told_by_key_and_address(answering: Callable[..., str]) -> None:
    with Tracker(answering(MAGIC, packed([0, SUMMARY]))) as tracker:
        servers = tracker.servers()
    assert servers == {"board": Servers(frozenset({"10.0.0.1:9090", "b:1"}), 1)}
    assert servers.get("old", NO_SERVERS).free == 0


def test_a_server_is_offered_or_none_is_free(answering: Callable[..., str]) -> None:
    offer = packed([0, ["10.0.0.1", 9090, "board:0.5"]])
    with Tracker(answering(MAGIC, packed([0, SUMMARY]), offer, packed([0, SUMMARY]))) as tracker:
        assert tracker.request("board") == ServerOffer("10.0.0.1", 9090, "board:0.5")
        assert tracker.request("nothing") is None
    # Between the look and the question another client was faster, and the tracker waits for the next free one.
    with Tracker(answering(MAGIC, packed([0, SUMMARY]), None)) as tracker:
        assert tracker.request("board") is None


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([b"HTTP/1.1 400 Bad Request\r\n"], "is no TVM RPC tracker"),
        ([None], r"no RPC tracker answers at .*\(timed out\); start one"),
        ([MAGIC, b"\xff\xff\xff\xff"], "is no TVM RPC tracker"),
        ([MAGIC, packed({"no": "list"})], "is no TVM RPC tracker"),
        ([MAGIC, packed([0, SUMMARY])[:20]], "is gone"),
        ([MAGIC, packed([-1, None])], "refuses 6"),
        ([MAGIC, packed([0, {"server_info": [{}]}])], "is no TVM RPC tracker"),
    ],
)
def test_what_is_no_tracker_is_named(answering: Callable[..., str], answers: list[bytes | None], message: str) -> None:
    with pytest.raises(CdmppError, match=message), Tracker(answering(*answers)) as tracker:
        tracker.servers()


def test_nobody_there() -> None:
    with pytest.raises(CdmppError, match="no RPC tracker answers at 127.0.0.1:1 .* --port 1 --port-end 2"):
        Tracker("127.0.0.1:1")
