"""What a worker or a server of a real job may use of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cdmpp.platform.limits import Limits, check_fields, numbers

_MBIT = numbers(0.1, 1e6, "Mbit/s")
_CORE = Limits(0, 2**16)


@dataclass(frozen=True)
class WorkerPlace:
    """One worker: its share of a core, its link, its core."""

    LIMITS: ClassVar[Mapping[str, Limits]] = {"cpu_share": numbers(0.01, 1.0), "mbit": _MBIT, "core": _CORE}
    cpu_share: float | None = None
    """Share of one core that the kernel lets it run for; None: no limit."""
    mbit: float | None = None
    """Mbit/s of its link, each way; None: no limit."""
    core: int | None = None
    """Core it is pinned to; None: any."""

    def __post_init__(self) -> None:
        check_fields(self, "worker.")


@dataclass(frozen=True)
class ServerPlace:
    """One parameter server: its link, its core."""

    LIMITS: ClassVar[Mapping[str, Limits]] = {"mbit": _MBIT, "core": _CORE}
    mbit: float | None = None
    """Mbit/s of its link, each way; None: no limit."""
    core: int | None = None
    """Core it is pinned to; None: any."""

    def __post_init__(self) -> None:
        check_fields(self, "server.")
