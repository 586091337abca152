"""ServeSettings: where a server listens, and what one request may take of it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from cdmpp.errors import UsageError
from cdmpp.platform.limits import PROCESSES, Limits, check_fields, numbers, shown
from cdmpp.serve.token import checked_token

_SECONDS = numbers(0, 86_400, "seconds", above=True)


@dataclass(frozen=True)
class ServeSettings:
    """A server listens here and keeps these limits. ``UsageError`` for a value that cannot be."""

    LIMITS: ClassVar = {
        "port": Limits(0, 65_535), "processes": PROCESSES, "plan_processes": PROCESSES,
        "body_mb": numbers(0, 2000, "MB", above=True), "body_s": _SECONDS, "time_s": _SECONDS, "plan_time_s": _SECONDS,
        "waiting": Limits(1, 100_000, "requests"), "memory_gb": numbers(0, 10**6, "GB", above=True),
        "kept_mb": numbers(0, 10**5, "MB", above=True), "drain_s": _SECONDS,
    }  # fmt: skip

    host: str = "127.0.0.1"
    """Address that it listens on: an IP address, or ``localhost``."""
    port: int = 8321
    """0: a free one, which the server says."""
    processes: int = 2
    """Processes that answer programs, networks and steps under PyTorch's own kernels."""
    plan_processes: int = 1
    """Processes that answer what takes long: plans, and networks that TVM or Inductor compiles."""
    body_mb: float = 64.0
    """Most megabytes (1e6 bytes) of the body of a request; all that arrive at a time have four times as much."""
    body_s: float = 30.0
    """Most seconds in which a body arrives."""
    time_s: float = 60.0
    """Most seconds of a request, those in which it waits included."""
    plan_time_s: float = 300.0
    """The same, of what takes long."""
    waiting: int = 256
    """Most requests that run or wait at a time, and as many connections twice over."""
    memory_gb: float = 8.0
    """Most memory (1e9 bytes) that a process takes for questions, beside that of the libraries that it loads."""
    kept_mb: float = 64.0
    """Most megabytes of answers that are kept for the same question."""
    drain_s: float = 60.0
    """Most seconds that running requests have to end once the server is told to stop."""
    token: str | None = field(default=None, repr=False)
    """Who asks must say it; None: everybody may ask."""
    ssl_certfile: Path | None = None
    """Certificates, the server's own first, as PEM: connections are TLS; None: they are not."""
    ssl_keyfile: Path | None = None
    """Private key of the certificate as PEM, without a passphrase; None: it stands in ``ssl_certfile``."""

    def __post_init__(self) -> None:
        if self.token is not None:
            checked_token(self.token, "token")  # first, as it does not show what it was given
        check_fields(self)
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise UsageError(
                f"ssl_keyfile is {shown(str(self.ssl_keyfile))}: it goes with ssl_certfile, which is missing"
            )
        if self.host != "localhost":
            try:
                ipaddress.ip_address(self.host)
            except ValueError:
                raise UsageError(
                    f"host is {shown(self.host)}: expected an IP address such as 127.0.0.1 or 0.0.0.0, or localhost"
                ) from None

    @property
    def body_bytes(self) -> int:
        """Return the most bytes of a body."""
        return int(1e6 * self.body_mb)
