"""One server of a tracker, held for many visits: work of a lane's child process, because TVM may hang or crash.

All visits to a program must be taken on one host, and a tracker hands out any: a session that is kept stays there.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.measure import protocol
from cdmpp.measure.reference_kernels import PREFIX
from cdmpp.measure.timing import make_inputs, time_module
from cdmpp.platform.workers import Reply, Request

SESSION_LIMIT_S = 900
"""The server ends a session after this long: so long a kernel that hangs keeps it busy."""
LOST = "session lost"
"""Cause of a visit that says nothing about its program: the server went away, or a kernel took it along."""


@dataclass
class _Held:
    """What this process holds of a server."""

    session: Any = None
    tensors: dict[str, Any] = field(default_factory=dict)
    """Arguments of the reference kernels -> tensors there."""
    last: tuple[str, Any] = ("", None)
    """The same of the last program: those of one task come in a row."""


_held = [_Held()]


def open_session(request: Request) -> Reply:
    """Hold the server that a tracker offered as ``host``, ``port`` and ``match_key``, instead of the one held so far.

    The reply is what the server says of itself (``hostname``, ``cpu``, ``triple``, ``llvm``, as far as it knows).
    """
    from tvm import rpc

    close_session()
    session = rpc.connect(request["host"], request["port"], request["match_key"], SESSION_LIMIT_S)
    _held[0].session = session
    return dict(_facts(session))


def close_session(_: Request | None = None) -> Reply:
    """Let go of the server."""
    _held[0] = _Held()
    return {}


def time_held(request: Request) -> Reply:
    """Take a visit on the server that is held; replies as ``time_module``, or with the cause ``LOST``."""
    if (session := _held[0].session) is None:
        return {"cause": LOST, "message": "no server is held"}
    name = Path(request["path"]).name
    try:
        session.upload(request["path"])
        device, tensors = session.cpu(), _tensors(session, request["arguments"], name.startswith(PREFIX))
        return time_module(session.load_module(name), request["symbol"], tensors, device, protocol.CPU)
    except Exception as error:  # noqa: BLE001 - TVM raises many kinds
        message = f"{type(error).__name__}: {str(error).strip()[-300:]}"
        if _answers(session):
            return {"cause": "remote error", "message": message}
        close_session()
        return {"cause": LOST, "message": message}
    finally:
        with contextlib.suppress(Exception):  # the server may be gone, and what went wrong before matters more
            session.remove(name)


def _tensors(session: Any, arguments: list[Any], keep: bool) -> list[Any]:
    """Return inputs on the server: sent once for all programs of a task, and once a session to ``keep``."""
    import tvm

    key, device = repr(arguments), session.cpu()
    tensors: list[Any] | None = _held[0].tensors.get(key) or (_held[0].last[1] if _held[0].last[0] == key else None)
    if tensors is None:
        if not keep:
            _held[0].last = "", None  # first let go of the others: a board has little memory
        tensors = [tvm.runtime.tensor(array, device) for array in make_inputs(arguments)]
        if keep:
            _held[0].tensors[key] = tensors
        else:
            _held[0].last = key, tensors
    return tensors


def _answers(session: Any) -> bool:
    try:
        session.listdir("")
    except Exception:  # noqa: BLE001 - TVM raises many kinds, and all mean that the session broke
        return False
    return True


def _facts(session: Any) -> dict[str, str]:
    """What a full TVM at the other end tells; a small runtime tells nothing."""
    functions = {"cpu": "target.llvm_get_system_cpu", "triple": "target.llvm_get_system_triple"}
    facts = {}
    for name, function in {**functions, "llvm": "target.llvm_version_major"}.items():
        with contextlib.suppress(Exception):
            facts[name] = str(session.get_function(function)())
    with contextlib.suppress(Exception):
        facts["hostname"] = bytes(session.download("/etc/hostname")).decode().strip()
    return facts


def check_architecture(facts: dict[str, str], target: dict[str, Any], own_triple: str) -> None:
    """Raise ``CdmppError`` where code for ``target``, built on a machine of ``own_triple``, cannot run on a server."""
    built, found = _architecture(target.get("mtriple") or own_triple), _architecture(facts.get("triple", ""))
    if found and built != found:
        raise CdmppError(f"it is a machine of {found}, programs of the device are built for {built}")


def _architecture(triple: str) -> str:
    name = triple.partition("-")[0].lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)
