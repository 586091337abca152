"""Keys of simulated tasks and streams: what a task is, in fields, so that no name is ever parsed."""

from __future__ import annotations

from typing import NamedTuple

ALL_RANKS = -1
"""The rank of a task that belongs to all ranks that take part."""


class TaskKey(NamedTuple):
    """A key names one task of a simulated step."""

    step: int
    """Number of the step, from 0 up."""
    kind: str
    """``start``, ``delay``, ``op`` or ``end`` of a rank; ``arrival``, ``word``, ``begun``, ``exchange``, ``ring step``,
    ``push``, ``sum`` or ``pull`` of an exchange."""
    rank: int
    """Rank that it belongs to; ``ALL_RANKS``: all that take part."""
    place: int
    """Place of the op in its rank, or of the exchange in its step graph; 0 for a start or an end."""
    part: tuple[int, ...] = ()
    """Stage and ring step of a ``ring step``."""

    @property
    def is_of_exchange(self) -> bool:
        """Return True if ``place`` is that of an exchange."""
        return self.kind not in _OF_A_RANK


_OF_A_RANK = ("start", "delay", "op", "end")


class Stream(NamedTuple):
    """A stream is a resource of one rank, which runs one task at a time."""

    rank: int
    name: str
    """``compute``, ``communication``, ``exchange 0``, or what else the rank has."""

    def __str__(self) -> str:
        return f"rank {self.rank} {self.name}"
