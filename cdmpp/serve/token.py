"""Token: a word that a server asks for, compared in a time that does not tell how much of another one was right."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Iterable
from pathlib import Path

from cdmpp.errors import UsageError

VARIABLE = "CDMPP_TOKEN"
"""Variable of the environment that has the token where no file does."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,1000}")
_MOST_BYTES = 4096
"""Bytes of a file that are read."""


def checked_token(token: str, whose: str) -> str:
    """Return a token; ``UsageError`` for what is none, which is not shown. ``whose``: where it was found."""
    if isinstance(token, str) and _TOKEN.fullmatch(token):
        return token
    raise UsageError(
        f"{whose} is no token: expected 16 to 1000 letters, digits and ._~+/=-, such as `openssl rand -hex 32` gives"
    )


def token_of(file: Path | None) -> str | None:
    """Return the only line of a file, else what the environment has; None: there is none.

    Raises:
        UsageError: the file cannot be read, or that is no token.
    """
    if file is None:
        token = os.environ.get(VARIABLE)
        return None if token is None else checked_token(token, f"the variable {VARIABLE}")
    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES)
    except OSError as error:
        raise UsageError(f"cannot read the token of {file}: {error.strerror or error}") from error
    return checked_token(content.decode("utf-8", "replace").strip(), f"the content of {file}")


def is_token(given: str | bytes, token: str) -> bool:
    """Return True if ``given`` is the token."""
    text = given if isinstance(given, bytes) else given.encode("utf-8", "replace")
    return hmac.compare_digest(hashlib.sha256(text).digest(), hashlib.sha256(token.encode()).digest())


def bearer(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return what stands behind ``Authorization: Bearer``; empty where it stands nowhere, or twice."""
    found = [value for name, value in headers if name.lower() == b"authorization"]
    kind, _, given = found[0].strip().partition(b" ") if len(found) == 1 else (b"", b"", b"")
    return given.strip() if kind.lower() == b"bearer" else b""
