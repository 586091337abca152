"""StepSource: what one rank computes for one micro-batch, wherever that is known from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cdmpp.collectives.collective import KINDS
from cdmpp.errors import CdmppError, DataError
from cdmpp.network.training_step import StepMemory
from cdmpp.plans.degrees import TITLES, ParallelDegrees
from cdmpp.platform.limits import check_all, check_choice
from cdmpp.steps.exchange import START
from cdmpp.steps.step_graph import RankGraph

SPLITS = ("spatial", "filter", "channel")
"""Degrees along which a source divides operators. One at a time may exceed 1."""


@dataclass(frozen=True)
class OpExchange:
    """Ranks along one degree exchange this once for each micro-batch, so that a divided operator is right."""

    kind: str
    """A key of ``collective.KINDS``."""
    bytes: int
    """Counted as ``collective.KINDS`` says; of a halo the message from one rank to its neighbour."""
    degree: str
    """One of ``SPLITS``: the ranks of one group along it take part."""
    after: int
    """Place of the op in ``RankWork.rank`` that must have ended before; ``START``: from the start on."""
    before: tuple[int, ...]
    """Places of the ops that wait for its end."""
    name: str = ""
    """Title for a reader, such as ``layer1.0.conv2 halo``."""
    shift: int = 0
    """Each rank of the group of a ``send_recv`` sends to the one so many places further, if there is one, all at the
    same time; 0 for collectives."""
    span: int = 0
    """The group of a ``send_recv`` stands in rows of so many ranks, beyond which none sends; 0: all in one row. Ranks
    of a grid of 4 x 2 blocks have rows of 2 along its last axis."""

    def __post_init__(self) -> None:
        check_choice("kind of an exchange of operators", self.kind, tuple(KINDS))
        check_choice("degree of an exchange of operators", self.degree, SPLITS)
        if self.bytes < 1 or self.after < START or (self.kind == "send_recv") != bool(self.shift):
            raise DataError(
                f"{self.name or self.kind} has {self.bytes} bytes after op {self.after}, shift {self.shift}"
            )

    def pairs(self, group: Sequence[int]) -> list[tuple[int, int]]:
        """List senders with receivers of a message, for the ranks of a group in order."""
        span = self.span or len(group)
        ends = ((place, place + self.shift) for place in range(len(group)))
        return [(group[a], group[b]) for a, b in ends if 0 <= b < len(group) and a // span == b // span]


@dataclass(frozen=True)
class RankWork:
    """One rank does this for one micro-batch, and its update once a step."""

    rank: RankGraph
    """Forward pass, backward pass and update, operators already divided; gradients, modules and buffers are those that
    one rank holds. Only the update does not run for each micro-batch."""
    exchanges: tuple[OpExchange, ...] = ()
    """Exchanges between the ranks that divide operators, in the order of their ops."""
    memory: StepMemory | None = None
    """Bytes that the rank holds with one micro-batch; None: unknown."""
    low: float = 1.0
    """Factor from the time to the lower end of its interval of 80 %; 1: no interval is known."""
    high: float = 1.0
    """The same to the upper end."""
    warnings: tuple[str, ...] = ()
    """Warnings to read before trusting it, a sentence each."""

    def __post_init__(self) -> None:
        check_all("exchanges of operators", self.exchanges, OpExchange)
        places = len(self.rank.ops)
        for one in self.exchanges:
            if one.after >= places or any(not 0 <= place < places for place in one.before):
                raise DataError(f"{one.name or one.kind} is next to no op of {places}")
        if not 0 < self.low <= 1 <= self.high:
            raise DataError(f"an interval from {self.low} to {self.high} times the time: expected 1 between them")


@dataclass(frozen=True)
class StepTimes:
    """Times and sizes that differ from micro-batch to micro-batch."""

    ops: tuple[object, ...]
    """Equal for micro-batches that run the same ops, whatever their sizes: phases, inputs and exchanges."""
    seconds: NDArray[np.float64]
    """Seconds of each op with its pauses."""
    gaps_s: NDArray[np.float64]
    """Pause after each op."""
    once_s: float
    """Seconds that a step takes once."""
    exchanged_bytes: NDArray[np.int64]
    """Bytes of each exchange of divided operators."""
    low: float
    high: float
    """The same as of ``RankWork``."""

    @classmethod
    def of(cls, work: RankWork) -> StepTimes:
        """Read them from the work of a rank."""
        ops = work.rank.ops
        exchanges = tuple((one.kind, one.degree, one.after) for one in work.exchanges)
        return cls(
            (tuple((op.phase, op.inputs) for op in ops), exchanges),
            np.array([op.delay_s + op.duration_s + op.gap_s for op in ops], np.float64),
            np.array([op.gap_s for op in ops], np.float64),
            work.rank.start_s + work.rank.tail_s,
            np.array([one.bytes for one in work.exchanges], np.int64),
            work.low,
            work.high,
        )

    @property
    def is_update(self) -> NDArray[np.bool_]:
        """Which ops are of the update."""
        phases: tuple[tuple[str, object], ...] = self.ops[0]  # type: ignore[assignment]
        return np.array([phase == "update" for phase, _ in phases], np.bool_)


class StepSource(ABC):
    """What is known about a job before it is planned: one rank's work at any micro-batch and split."""

    @property
    def of(self) -> str:
        """Return what its times are those of, for a reader."""
        return "predicted kernels"

    @abstractmethod
    def work(self, batch: int, degrees: ParallelDegrees) -> RankWork:
        """Return the work of one rank for one micro-batch.

        Args:
            batch: examples of the micro-batch, from 1 up.
            degrees: of the job; only ``SPLITS`` change what a rank computes. Ranks along these share the examples.

        Raises:
            CdmppError: a batch or a split that the source does not know, with what it knows.
        """

    def times(self, batch: int, degrees: ParallelDegrees) -> StepTimes | None:  # noqa: ARG002
        """Return the times that ``work`` at the same arguments has, where they are known without its ops.

        None: they are not. ``CdmppError`` as of ``work``.
        """
        return None

    @abstractmethod
    def limits(self) -> Mapping[str, int]:
        """Return the largest possible value of each degree that has one here; others have none."""

    def prepare(self, batches: Iterable[int], degrees: Iterable[ParallelDegrees]) -> None:  # noqa: B027
        """Make ready for ``work`` at all combinations, where that is faster together; nothing else changes."""


def split_of(degrees: ParallelDegrees) -> tuple[str, int]:
    """Return the split degree above 1 and its ranks; ``("", 1)`` where there is none.

    ``CdmppError``: two of them, or degrees that no source can divide operators along.
    """
    found = [name for name in degrees.beyond_one() if name in (*SPLITS, "tp", "cp", "ep")]
    for name in found:
        if name not in SPLITS:
            raise CdmppError(
                f"degrees.{name} is {getattr(degrees, name)}: {TITLES[name]} of operators is not supported yet"
            )
    if len(found) > 1:
        given = " and ".join(f"{name}={getattr(degrees, name)}" for name in found)
        raise CdmppError(f"degrees {given}: operators can be divided along one of {', '.join(SPLITS)} at a time")
    return (found[0], getattr(degrees, found[0])) if found else ("", 1)
