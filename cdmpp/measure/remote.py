"""Times a built program on another machine through TVM's RPC: a tracker hands out servers, a session is one visit."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.measure.timing import make_inputs, time_module

SESSION_LIMIT_S = 60
ATTEMPTS = 3
"""A visit that fails is tried again: a server that went away must not cost a program its record."""


def parse_tracker(text: str) -> tuple[str, int]:
    """``host:port``; ``CdmppError`` where it is something else."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise CdmppError(f"tracker={text!r} is not host:port, for example tracker=10.0.0.7:9190")
    return host, int(port)


def time_remote(tracker: str, key: str, path: str, arguments: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """One visit on any free server that registered under ``key``; replies as ``time_library`` does."""
    import tvm
    from tvm import rpc

    host, port = parse_tracker(tracker)
    session = rpc.connect_tracker(host, port).request(key, session_timeout=SESSION_LIMIT_S)
    name = Path(path).name
    try:
        session.upload(path)
        device = session.cpu()
        tensors = [tvm.runtime.tensor(array, device) for array in make_inputs(arguments)]
        return time_module(session.load_module(name), tensors, device)
    finally:
        try:
            session.remove(name)
        except Exception:  # noqa: BLE001 - the server may be gone, and what went wrong before matters more
            pass


def free_servers(tracker: str, key: str) -> int:
    """Servers that are registered under ``key`` now.

    Raises:
        CdmppError: no tracker answers there, or it knows no server of that key.
    """
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
        known = ", ".join(sorted(queues)) or "none"
        raise CdmppError(
            f"the tracker at {tracker} has no free server with key {key!r} (keys it knows: {known}); "
            f"on the device run: python -m tvm.exec.rpc_server --tracker {tracker} --key {key}"
        )
    return int(count)
