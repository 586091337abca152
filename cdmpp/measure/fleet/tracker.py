"""Asks a TVM RPC tracker which servers it has, and for one of them by address. Nothing here waits for ever.

TVM's own client tells no address of the server that it was given, and waits without limit where none is free.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

from cdmpp.errors import CdmppError
from cdmpp.measure.remote import parse_tracker

_MAGIC = 0x2F271
_REQUEST, _SUMMARY, _SUCCESS = 4, 6, 0  # of tvm.rpc.base.TrackerCode, which takes seconds to import
_REPLY_LIMIT_S = 10.0
_LARGEST_REPLY = 1 << 24


class ServerOffer(NamedTuple):
    """The tracker hands out a server by these three; the key is good for one session."""

    host: str
    port: int
    match_key: str

    @property
    def address(self) -> str:
        """Return ``host:port``, by which one server is told from another."""
        return f"{self.host}:{self.port}"


class Servers(NamedTuple):
    """Servers that registered under one key."""

    addresses: frozenset[str]
    free: int


NO_SERVERS = Servers(frozenset(), 0)


class Tracker:
    """This context manager is one connection to the tracker at ``address``, ``host:port``.

    Raises:
        CdmppError: nobody answers there, or it is no tracker.
    """

    def __init__(self, address: str) -> None:
        """Connect."""
        self.address = address
        host, port = parse_tracker(address)
        try:
            self._socket = socket.create_connection((host, port), timeout=_REPLY_LIMIT_S)
            self._socket.sendall(struct.pack("<i", _MAGIC))
            (magic,) = struct.unpack("<i", self._receive(4))
        except OSError as error:
            raise CdmppError(
                f"no RPC tracker answers at {address} ({error}); start one: "
                f"python -m tvm.exec.rpc_tracker --port {port} --port-end {port + 1}"
            ) from error
        if magic != _MAGIC:
            self._socket.close()
            raise CdmppError(f"what answers at {address} is no TVM RPC tracker")

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def servers(self) -> Mapping[str, Servers]:
        """Return key -> its servers, for all keys."""
        summary = self._ask([_SUMMARY])
        addresses: dict[str, set[str]] = {}
        with self._readable():
            for server in summary["server_info"]:
                host, port = server["addr"]
                addresses.setdefault(server["key"].removeprefix("server:"), set()).add(f"{host}:{port}")
            free = {key: int(queue["free"]) for key, queue in summary["queue_info"].items()}
        return {key: Servers(frozenset(found), free.get(key, 0)) for key, found in addresses.items()}

    def request(self, key: str) -> ServerOffer | None:
        """Return a free server of ``key``; None where all are busy: then ask no more.

        It is kept for the caller some seconds. One that no session begins with comes back to the tracker.
        """
        if not self.servers().get(key, NO_SERVERS).free:
            return None
        try:
            offer = self._ask([_REQUEST, key, "", 1])
        except CdmppError as error:
            if not isinstance(error.__cause__, TimeoutError):
                raise
            self._socket.close()  # another client was faster: the tracker must not keep the next free one for us
            return None
        with self._readable():
            host, port, match_key = offer
            return ServerOffer(str(host), int(port), str(match_key))

    def _ask(self, question: list[Any]) -> Any:
        text = json.dumps(question).encode()
        try:
            self._socket.sendall(struct.pack("<i", len(text)) + text)
            (length,) = struct.unpack("<i", self._receive(4))
            with self._readable():
                if not 0 < length <= _LARGEST_REPLY:
                    raise ValueError(f"a message of {length} bytes")
                status, answer = json.loads(self._receive(length))
        except OSError as error:
            raise CdmppError(f"the RPC tracker at {self.address} is gone ({error})") from error
        if status != _SUCCESS:
            raise CdmppError(f"the RPC tracker at {self.address} refuses {question[0]}: {answer}")
        return answer

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise CdmppError(f"what answers at {self.address} is no TVM RPC tracker: {error!r}") from error

    def _receive(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            part = self._socket.recv(length - len(data))
            if not part:
                raise ConnectionError("it closed the connection")
            data += part
        return data
