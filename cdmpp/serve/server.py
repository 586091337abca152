"""The server process: uvicorn around the application, stopped by a signal once its requests have ended."""

from __future__ import annotations

import logging
import signal
import socket
import ssl
from collections.abc import Callable
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.serve.settings import ServeSettings

_BACKLOG = 1024


def serve(settings: ServeSettings, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT: then nothing new is taken, and what runs has ``drain_s`` seconds to end.

    Args:
        settings: where, and within which limits.
        say: told the address, once it listens.

    Raises:
        CdmppError: the extra ``serve`` is not installed, or the address cannot be had.
    """
    try:
        import uvicorn

        from cdmpp.serve.app import make_app
        from cdmpp.serve.connection import connections_within
    except ImportError as error:
        raise CdmppError(f"serving needs FastAPI and uvicorn ({error}): pip install 'cdmpp[serve]'") from error
    tls = _tls(settings)
    listening = _bound(settings)
    port = listening.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    config = uvicorn.Config(
        make_app(settings), log_config=None, access_log=False, server_header=False, timeout_keep_alive=15,
        limit_concurrency=2 * settings.waiting, timeout_graceful_shutdown=int(settings.drain_s) or 1,
        backlog=_BACKLOG, h11_max_incomplete_event_size=16_384, proxy_headers=False, ws="none",
        http=connections_within(settings.body_s), **tls,
    )  # fmt: skip
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    scheme, asks = "https" if tls else "http", "who asks needs the token; " if settings.token else ""
    say(f"listening on {scheme}://{host}:{port} ({asks}page at /, OpenAPI at /openapi.json); Ctrl-C or SIGTERM ends it")
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises it once more when all is done
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        signal.signal(signal.SIGTERM, before)
        listening.close()


def _tls(settings: ServeSettings) -> dict[str, Any]:
    """Return uvicorn's settings of TLS; ``CdmppError``: certificate or key cannot be read, or are no pair."""
    certificate, key = settings.ssl_certfile, settings.ssl_keyfile
    if certificate is None:
        return {}
    try:
        for one in filter(None, (certificate, key)):
            one.open("rb").close()
        # A key with a passphrase is refused: else OpenSSL asks for it on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: b"")
    except OSError as error:  # that of ssl, too
        both = f"{certificate} and {key}" if key else f"{certificate}"
        raise CdmppError(
            f"cannot serve TLS by {both}: {error.strerror or error}; expected PEM files of a certificate and its "
            "private key, without a passphrase"
        ) from error
    return {"ssl_certfile": str(certificate), "ssl_keyfile": None if key is None else str(key)}


def _bound(settings: ServeSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With its protocol named asyncio sends what it has at once, else it waits 40 ms for an acknowledgement
    # (findings/uvicorn_workers_wait_40_ms.sh).
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((settings.host, settings.port))
    except OSError as error:
        made.close()
        raise CdmppError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; give another --port or --host"
        ) from error
    return made
