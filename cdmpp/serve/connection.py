"""Connections: HTTP/1.1 of uvicorn, with an end to those on which no request begins."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


def connections_within(head_s: float) -> type[asyncio.Protocol]:
    """Return the protocol of connections that end where the head of a request takes longer than ``head_s`` seconds."""

    class Connection(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._late = self.loop.call_later(head_s, transport.close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            has_begun = self.cycle is not None and not self.cycle.response_complete
            if has_begun:
                self._stop_waiting()
            elif self._late is None:
                self._late = self.loop.call_later(head_s, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            self._stop_waiting()  # how long the next request may take to begin, uvicorn says
            super().on_response_complete()

        def _stop_waiting(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return Connection
