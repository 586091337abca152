"""Refusals as JSON: type, message and status, the same for every reason."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi.responses import JSONResponse
from pydantic import BaseModel

from cdmpp import errors
from cdmpp.version import __version__

VERSION_HEADER = "x-cdmpp-version"
HEADERS = {VERSION_HEADER: __version__, "x-content-type-options": "nosniff", "cache-control": "no-store"}
"""Sent with every answer."""
_STATUS = {"UsageError": 400, "UnknownDeviceError": 400, "BusyError": 503, "StartingError": 503, "TimeUpError": 504,
           "CrashError": 500}  # fmt: skip


class Fault(BaseModel):
    """This is why there is no answer."""

    type: str
    """A class of ``cdmpp.errors``, or ``BusyError``, ``StartingError``, ``TimeUpError``, ``CrashError``."""
    message: str


class Refusal(BaseModel):
    """The body of every answer that is none."""

    error: Fault


def status_of(kind: str) -> int:
    """Return the status of an error by the name of its type: 400 or 422 where the question is at fault."""
    if kind in _STATUS:
        return _STATUS[kind]
    return 422 if isinstance(getattr(errors, kind, None), type) else 500


def refusal(status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the answer that is none."""
    again = {"retry-after": "1"} if status == 503 else {}
    content = Refusal(error=Fault(type=kind, message=message)).model_dump()
    return JSONResponse(content, status, {**HEADERS, **again, **(headers or {})})
