"""Times a built program on another machine through TVM's RPC: a tracker hands out servers, a session is one visit."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path

from cdmpp.errors import CdmppError
from cdmpp.measure import protocol
from cdmpp.measure.timing import make_inputs, time_module
from cdmpp.platform.workers import Reply, Request

SESSION_LIMIT_S = 60
ATTEMPTS = 3
"""A visit that fails is tried again: a server that went away must not cost a program its record."""


def parse_tracker(text: str) -> tuple[str, int]:
    """Read ``host:port``; ``CdmppError`` where it is something else."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise CdmppError(f"tracker={text!r} is not host:port, for example tracker=10.0.0.7:9190")
    return host, int(port)


def time_remote(request: Request) -> Reply:
    """Take a visit on any free server of ``tracker`` that registered under ``key``; replies as ``time_module``."""
    for attempt in range(ATTEMPTS):
        try:
            return _time_once(request)
        except Exception as error:  # noqa: BLE001 - TVM raises many kinds, and all mean that the session broke
            message = f"{type(error).__name__}: {str(error)[-300:]}"
            time.sleep(attempt)
    return {"cause": "remote error", "message": message}


def _time_once(request: Request) -> Reply:
    import tvm
    from tvm import rpc

    tracker = rpc.connect_tracker(*parse_tracker(request["tracker"]))
    session = tracker.request(request["key"], session_timeout=SESSION_LIMIT_S)
    name = Path(request["path"]).name
    try:
        session.upload(request["path"])
        device = session.cpu()
        tensors = [tvm.runtime.tensor(array, device) for array in make_inputs(request["arguments"])]
        return time_module(session.load_module(name), request["symbol"], tensors, device, protocol.CPU)
    finally:
        with contextlib.suppress(Exception):  # the server may be gone, and what went wrong before matters more
            session.remove(name)


def free_servers(tracker: str, key: str) -> int:
    """Count the free servers of ``key``; ``CdmppError`` where no tracker answers, or it has none of that key."""
    from tvm import rpc

    host, port = parse_tracker(tracker)
    try:
        socket.create_connection((host, port), timeout=10).close()  # TVM itself would try for a minute
        queues = rpc.connect_tracker(host, port).summary()["queue_info"]
    except (OSError, RuntimeError) as error:
        raise CdmppError(
            f"no RPC tracker answers at {tracker} ({error}); start one: "
            f"python -m tvm.exec.rpc_tracker --port {port} --port-end {port + 1}"
        ) from error
    count = queues.get(key, {}).get("free", 0)
    if not count:
        raise CdmppError(
            f"the tracker at {tracker} has no free server with key {key!r} (keys it knows: "
            f"{', '.join(sorted(queues)) or 'none'}); "
            f"on the device run: python -m tvm.exec.rpc_server --tracker {tracker} --key {key}"
        )
    return int(count)
