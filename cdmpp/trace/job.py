"""TracedJob: the usual step of a training job on several ranks, with waiting for others taken out of every duration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cdmpp.errors import DataError
from cdmpp.simulate.task import check_seconds


@dataclass(frozen=True)
class JobOp:
    """An operator of one rank: medians over the traced steps."""

    name: str
    phase: str
    duration_s: float
    gap_s: float = 0.0
    """Between what it waited for and its start: the host, the launch."""
    waits: tuple[int, ...] = ()
    """Places of the exchanges that must have ended, in ``TracedJob.exchanges``."""
    spread_s: float = 0.0
    """Half of the distance between the quartiles of its durations."""
    held_by: tuple[int, ...] = ()
    """Places of messages that its rank sends and that must have left for a buffer: its gap changes as their wire."""


@dataclass(frozen=True)
class JobGradient:
    """A parameter's gradient, in the order in which they become ready."""

    bytes: int
    after: int
    """Place of the op that it is ready after."""


@dataclass(frozen=True)
class JobRank:
    """What one rank does in a step."""

    rank: int
    ops: tuple[JobOp, ...]
    gradients: tuple[JobGradient, ...] = ()
    tail_s: float = 0.0
    """After the last op, until the next step begins."""

    @cached_property
    def busy_s(self) -> float:
        """Of all ops, without gaps."""
        return sum(op.duration_s for op in self.ops)


@dataclass(frozen=True)
class JobExchange:
    """A collective or a message."""

    kind: str
    """As in ``distributed.collective.KINDS``, or what the framework calls it."""
    bytes: int
    """As ``KINDS`` counts them; 0 unknown."""
    after: Mapping[int, int]
    """Rank -> place of the op that launches it; -1: the begin of the step."""
    wire_s: float
    """With the link for itself, from the latest arrival on."""
    lag_s: Mapping[int, float]
    """Rank -> seconds from the end of that op to its arrival with a worker free."""
    group: str = ""
    spread_s: float = 0.0

    @property
    def ranks(self) -> tuple[int, ...]:
        """Who takes part."""
        return tuple(sorted(self.after))


@dataclass(frozen=True)
class TracedJob:
    """All ranks, what they exchange, and what was measured."""

    ranks: tuple[JobRank, ...]
    exchanges: tuple[JobExchange, ...]
    steps_s: tuple[float, ...]
    """Length of each traced step, mean over ranks."""
    backend: str = ""
    workers: int = 1
    """Exchanges that a rank runs at a time."""
    probed: tuple[tuple[str, int, float], ...] = ()
    """Kind, bytes and seconds of collectives over all ranks that were timed apart, by kind and rising bytes."""
    processor_share: float = 0.0
    """Of a processor that an exchange takes while it is under way, as it was probed; 0: not probed, or on a GPU."""
    is_apart: bool = False
    """Whether durations are those of ops beside no exchange: a replay makes them longer beside one."""
    waits_s: Mapping[int, float] | None = None
    """Rank -> seconds a step that its exchanges stood there until the last rank came."""
    unprofiled_s: float | None = None
    """Median step of the same run with the profiler off; None where nobody took it."""

    def __post_init__(self) -> None:
        if not 0 <= self.processor_share < 1:
            raise DataError(f"exchanges take {self.processor_share} of a processor: expected 0 to below 1")
        known = [rank.rank for rank in self.ranks]
        if known != sorted(set(known)) or not known:
            raise DataError(f"ranks {known}: expected each once, in order")
        for rank in self.ranks:
            for place, op in enumerate(rank.ops):
                check_seconds(op.duration_s, f"duration of op {place} of rank {rank.rank}")
                check_seconds(op.gap_s, f"gap before op {place} of rank {rank.rank}")
        for place, one in enumerate(self.exchanges):
            check_seconds(one.wire_s, f"wire time of exchange {place}")
            if not set(one.after) <= set(known):
                raise DataError(f"exchange {place} is of ranks {one.ranks}, the job has {known}")

    @property
    def measured_s(self) -> float:
        """Median traced step."""
        ordered = sorted(self.steps_s)
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2

    def rank(self, number: int) -> JobRank:
        """By its number."""
        return next(rank for rank in self.ranks if rank.rank == number)
