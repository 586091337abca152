"""A server of a few files on this machine, in place of the web."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


class Server(ThreadingHTTPServer):
    files: dict[str, bytes]
    """Path -> content; what is missing is not found."""
    cut: int
    """Bytes that are held back at the end of every file."""
    asked: list[str]


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        path = unquote(self.path)
        self.server.asked.append(path)
        content = self.server.files.get(path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) - self.server.cut])

    def log_message(self, *args) -> None:
        pass


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Server]:
    running = Server(("127.0.0.1", 0), _Handler)
    running.files, running.cut, running.asked = files, 0, []
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield running
    running.shutdown()
    running.server_close()


def address(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"
