#!/usr/bin/env bash
# uvicorn 0.54.0: with --workers 2 (or --reload) answers on a connection that is kept open come 40 ms late on Linux.
#
# What surprises: uvicorn makes the listening socket itself then (config.py, bind_socket: "socket.socket(family=family)"),
# whose protocol is 0. asyncio sets TCP_NODELAY only on sockets whose protocol is IPPROTO_TCP (base_events.py,
# _set_nodelay), and what accept returns has the protocol of the listening socket. So Nagle's algorithm holds the body of an
# answer, which uvicorn writes after its head, until the client acknowledges the head: Linux does so after 40 ms. Without
# --workers asyncio makes the socket, and answers come at once.
#
# Expected: as fast with --workers as without.
# Needs: Linux and a pip index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check install uvicorn==0.54.0
cat > "$folder/app.py" <<'PYTHON'
async def app(scope, receive, send):
    if scope["type"] == "http":
        headers = [(b"content-length", b"5")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"hello"})
PYTHON
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import socket
import statistics
import subprocess
import sys
import time


def median_ms(*options):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(port), "--lifespan", "off", "--log-level", "error"]
    server = subprocess.Popen([*words, *options])
    try:
        for _ in range(300):
            try:
                client = socket.create_connection(("127.0.0.1", port))
                break
            except OSError:
                time.sleep(0.1)
        took = []
        for _ in range(30):
            begin = time.perf_counter()
            client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = b""
            while not answer.endswith(b"hello"):
                answer += client.recv(4096)
            took.append(1e3 * (time.perf_counter() - begin))
        return statistics.median(took)
    finally:
        server.terminate()
        server.wait()


alone, workers = median_ms(), median_ms("--workers", "2")
print(f"median of 30 answers on one connection: {alone:.1f} ms; with --workers 2: {workers:.1f} ms")
sys.exit(0 if workers > 30 and workers > alone + 25 else 1)
PYTHON
