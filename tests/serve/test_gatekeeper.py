"""The gatekeeper by itself: size, time and number of requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest

pytest.importorskip("fastapi")
from cdmpp.serve.gatekeeper import Gatekeeper
from cdmpp.serve.settings import ServeSettings

SCOPE = {"type": "http", "method": "POST", "path": "/", "headers": []}


async def echo(scope: Any, receive: Any, send: Any) -> None:
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"]})


async def ask(
    gatekeeper: Gatekeeper, parts: Iterable[bytes | float], headers: Iterable[tuple[bytes, bytes]] = ()
) -> tuple[int, bytes]:
    """Send ``parts`` of a body, waiting where one is a number of seconds."""
    left, sent = list(parts), list[dict[str, Any]]()

    async def receive() -> dict[str, Any]:
        while left and not isinstance(left[0], bytes):
            await asyncio.sleep(left.pop(0))
        if not left:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await gatekeeper({**SCOPE, "headers": list(headers)}, receive, send)
    if not sent:
        return 0, b""
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:])


def run(parts: Iterable[bytes | float], *headers: tuple[bytes, bytes], **settings: Any) -> tuple[int, bytes]:
    gatekeeper = Gatekeeper(echo, ServeSettings(**{"body_mb": 0.001, **settings}))
    found = asyncio.run(ask(gatekeeper, parts, headers))
    assert gatekeeper.requests == 0 and gatekeeper._bytes == 0
    return found


def test_a_body_arrives_in_one_piece():
    assert run([b"a" * 400, b"b" * 600]) == (200, b"a" * 400 + b"b" * 600)


@pytest.mark.parametrize(
    ("parts", "headers", "status"),
    [
        ([b"x" * 1001], (), 413),
        ([b"x" * 600, b"x" * 600], (), 413),
        ([b"{}"], ((b"content-length", b"1001"),), 413),
        ([b"{}"], ((b"content-length", b"9" * 100),), 413),
        ([b"{}"], ((b"content-encoding", b"gzip"),), 415),
    ],
)
def test_what_is_too_large_or_packed_is_refused(parts, headers, status):
    found, body = run(parts, *headers)
    assert found == status and json.loads(body)["error"]["message"]


def test_what_is_too_slow_is_refused():
    assert run([b"{", 30.0, b"}"], body_s=0.05)[0] == 408


def test_a_client_that_goes_is_forgotten():
    assert run([b"{", 0.0])[0] == 0


def test_no_more_requests_than_may_be_here():
    async def many() -> list[tuple[int, bytes]]:
        gatekeeper = Gatekeeper(echo, ServeSettings(waiting=2))
        return await asyncio.gather(*(ask(gatekeeper, [0.05, b"{}"]) for _ in range(5)))

    assert sorted(status for status, _ in asyncio.run(many())) == [200, 200, 503, 503, 503]


def test_large_bodies_do_not_arrive_all_at_once():
    async def many() -> list[tuple[int, bytes]]:
        gatekeeper = Gatekeeper(echo, ServeSettings(body_mb=0.001))

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(0.1)
            await echo(scope, receive, send)

        gatekeeper.app = slow
        return await asyncio.gather(*(ask(gatekeeper, [b"x" * 1000]) for _ in range(6)))

    assert sorted(status for status, _ in asyncio.run(many())) == [200, 200, 200, 200, 503, 503]
