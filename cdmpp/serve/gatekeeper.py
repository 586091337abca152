"""Gatekeeper: what every request meets first, whatever it asks: how many there are, how large, how slow.

It reads the body itself, so that what is too large or too slow never reaches the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cdmpp.serve.refusal import refusal
from cdmpp.serve.settings import ServeSettings
from cdmpp.serve.token import bearer, is_token

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
_MOST_DROPPED, _DROPPED_S = 2**26, 5.0
"""Most bytes and seconds of a refused body that are read all the same."""
OF_THE_PAGE = {("GET", "/"), ("HEAD", "/"), ("POST", "/report")}
"""Method and address of what needs no token in a header: the form, and its answers, which look for it in the form."""
_FORM_BYTES = 2**16
"""Most bytes of a form."""
_AT_A_TIME = 4
"""Bodies of the largest size that may arrive at a time."""


class Gatekeeper:
    """An ASGI application around another one."""

    def __init__(self, app: App, settings: ServeSettings) -> None:
        """Guard ``app``."""
        self.app, self.settings = app, settings
        self.requests = 0
        """Requests that are here now."""
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it with the reason why not."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
                return
            await self.app(scope, receive, send)
            return
        self.requests += 1
        held = _Held()
        try:
            if self.requests > self.settings.waiting:
                await _refuse(scope, receive, send, 503, "BusyError",
                              f"{self.settings.waiting} requests are here already: ask again later")  # fmt: skip
                return
            try:
                body = await asyncio.wait_for(self._body(scope, receive, held), self.settings.body_s)
            except TimeoutError:
                await _refuse(scope, receive, send, 408, "TimeUpError",
                              f"the body did not arrive within {self.settings.body_s:g} seconds")  # fmt: skip
                return
            except _RefusedError as error:
                await _dropped(receive)
                await _refuse(scope, receive, send, error.status, error.kind, str(error))
                return
            if body is None:
                return  # the client has gone
            try:
                await self.app(scope, _replayed(body, receive), send)
            except asyncio.CancelledError:  # the server ends, and this took longer than it had
                await _refuse(scope, receive, send, 503, "BusyError", "the server ends: ask again later")
        finally:
            self._bytes -= held.bytes
            self.requests -= 1

    async def _body(self, scope: Scope, receive: Receive, held: _Held) -> bytes | None:
        """Read the body; None where the client has gone."""
        headers, asks = dict(scope["headers"]), (scope["method"], scope["path"])
        token = self.settings.token
        if token is not None and asks not in OF_THE_PAGE and not is_token(bearer(scope["headers"]), token):
            raise _RefusedError(401, "TokenError", "the token of this server is missing, or it is another one")
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise _RefusedError(415, "UsageError", "packed bodies are not read: send it as it is")
        most = min(_FORM_BYTES, self.settings.body_bytes) if asks in OF_THE_PAGE else self.settings.body_bytes
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared[:20]) > most:
            raise _RefusedError(413, "UsageError", _too_large(most))
        parts = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            held.bytes += len(part)
            self._bytes += len(part)
            if held.bytes > most:
                raise _RefusedError(413, "UsageError", _too_large(most))
            if self._bytes > _AT_A_TIME * most:
                raise _RefusedError(503, "BusyError", "large bodies of others are being read: ask again later")
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)


def _too_large(most: int) -> str:
    return f"the body has more than {1e-6 * most:g} MB (1e6 bytes), which is the most that is read"


@dataclass
class _Held:
    """Bytes of the body of one request that are here."""

    bytes: int = 0


class _RefusedError(Exception):
    def __init__(self, status: int, kind: str, text: str) -> None:
        super().__init__(text)
        self.status, self.kind = status, kind


async def _dropped(receive: Receive) -> None:
    """Read some of what is left of a body and drop it: else its sender meets a closed connection, and no reason."""
    left = _MOST_DROPPED
    with suppress(TimeoutError):
        async with asyncio.timeout(_DROPPED_S):
            while left > 0:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return
                left -= len(message.get("body", b""))


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, kind: str, text: str) -> None:
    """Answer, and end the connection: what is left of the body is not read."""
    asks = {"www-authenticate": 'Bearer realm="cdmpp"'} if status == 401 else {}
    await refusal(status, kind, text, {"connection": "close", **asks})(scope, receive, send)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Give the body once, and then what else comes."""
    given = False

    async def replay() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
