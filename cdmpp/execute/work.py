"""Work: many requests to child processes of one program; whoever has processes answers them, in any order."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable
from dataclasses import asdict, dataclass
from typing import Protocol

from cdmpp.platform.workers import Reply, Request

FOREVER_S = 20 * 86_400.0
"""Limit of a request that may take as long as it wants: what a poll can wait for, nearly."""


@dataclass(frozen=True)
class Work:
    """This is what its requests have in common."""

    command: tuple[str, ...]
    """Arguments of Python, such as ``("-m", MODULE)``, of a program that calls ``platform.workers.serve``."""
    limit_s: float
    """For one request."""
    processes: int
    """Processes of this machine that may work on it; a cluster takes all that it has."""
    ready: Request | None = None
    """The first request of each process, which loads what the later ones need."""


class Executor(Protocol):
    """An executor has processes."""

    is_here: bool
    """The processes are of this machine."""

    def replies(self, work: Work, requests: Iterable[Request], count: int) -> Generator[tuple[int, Reply]]:
        """Yield ``(index, reply)`` of ``count`` requests as they come; each is drawn when somebody is free.

        A reply that holds ``cause`` is a failure, as of ``platform.workers.Worker``. Whoever stops listening closes
        the generator: what is not done then is given up.
        """

    def close(self) -> None:
        """Let go of what was connected."""


@dataclass(frozen=True)
class Batch:
    """Some requests of a ``Work``, on their way to another machine: one message, so that each costs little."""

    run: str
    """Name of the call that they belong to: all that is left of it can be given up."""
    installation: str
    """Digest of the ``Installation`` that asks."""
    command: tuple[str, ...]
    ready: Request | None
    limit_s: float
    requests: tuple[Request, ...]

    def to_bytes(self) -> bytes:
        """Write it as JSON."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(message: bytes) -> Batch:
        """Read what ``to_bytes`` wrote."""
        told = json.loads(message)
        return Batch(**{**told, "command": tuple(told["command"]), "requests": tuple(told["requests"])})


@dataclass(frozen=True)
class Answers:
    """The replies to a batch."""

    replies: tuple[Reply, ...]
    seconds: float = 0.0
    """Time of the requests, without the start of a process."""
    refused: str = ""
    """Why this machine answers nothing; empty where it does."""

    def to_bytes(self) -> bytes:
        """Write it as JSON."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(message: bytes) -> Answers:
        """Read what ``to_bytes`` wrote."""
        told = json.loads(message)
        return Answers(**{**told, "replies": tuple(told["replies"])})
