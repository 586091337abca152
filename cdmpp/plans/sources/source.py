"""StepSource: what one rank computes for one micro-batch, wherever that is known from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cdmpp.collectives.collective import KINDS
from cdmpp.errors import CdmppError, DataError
from cdmpp.network.training_step import StepMemory
from cdmpp.network.update import Update
from cdmpp.plans.degrees import TITLES, ParallelDegrees
from cdmpp.plans.mesh import ORDER
from cdmpp.platform.limits import check_all, check_choice
from cdmpp.steps.exchange import START
from cdmpp.steps.step_graph import RankGraph
from cdmpp.steps.strategy import Strategy
from cdmpp.steps.transforms.copies import Copies

SPLITS = tuple(name for name in ORDER if name not in ("pp", "dp_replicate", "dp_shard"))
"""Degrees along which operators are divided, first along the first."""


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
    follows: bool = False
    """True if it waits for the end of the exchange before it, which is along another degree."""
    is_of_update: bool = False
    """True if it comes once a step, behind all passes and before the update."""
    is_ring: bool = False
    """True if the last rank of a row sends to the first one, too."""

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
        if self.is_ring:
            return [(group[a], group[(a + self.shift) % len(group)]) for a in range(len(group))]
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
    copies: Copies | None = None
    """Seconds that a device copies for each byte that FSDP gathers and scatters, and what collectives take from it;
    None: nothing, or the ops have it already."""
    is_cast: bool = False
    """True if parameters are kept in another type than that in which the passes read them, as only FSDP does."""
    by_device: Mapping[str, RankWork] = field(default_factory=dict)
    """Name of a device -> the same work on it, where ranks may stand on unlike ones; this is that of the first."""
    is_clipped: bool = False
    """True if the update clips gradients to a norm over all of them."""
    update: Update | None = None
    """How parameters are updated; None: unknown."""
    dispatch_s: tuple[float, ...] = ()
    """Seconds in which the host prepares and dispatches each op, while its device runs earlier ones. Starts and pauses
    of the ops follow from them. Empty: unknown."""

    def on(self, device: str) -> RankWork:
        """Return the work of a rank on a device; without a name this one. ``CdmppError``: an unknown device."""
        if not device:
            return self
        if device not in self.by_device:
            known = f"known are {', '.join(self.by_device)}" if self.by_device else "the work is that of one device"
            raise CdmppError(
                f"the plan has ranks on {device}, and nothing tells what they take there: {known}; name the devices by "
                "--devices, or take a plan without devices"
            )
        return self.by_device[device]

    def __post_init__(self) -> None:
        check_all("exchanges of operators", self.exchanges, OpExchange)
        if self.dispatch_s and len(self.dispatch_s) != len(self.rank.ops):
            raise DataError(f"{len(self.dispatch_s)} times of the host for {len(self.rank.ops)} ops: give one an op")
        places = len(self.rank.ops)
        for one in self.exchanges:
            if one.after >= places or any(not 0 <= place < places for place in one.before):
                raise DataError(f"{one.name or one.kind} is next to no op of {places}")
        if not 0 < self.low <= 1 <= self.high:
            raise DataError(f"an interval from {self.low} to {self.high} times the time: expected 1 between them")


def check_cast(work: RankWork, strategy: Strategy, ranks: int) -> None:
    """Raise ``CdmppError`` where a strategy of several ranks cannot keep parameters in a type of their own."""
    if work.is_cast and ranks > 1 and not strategy.casts_parameters:
        raise CdmppError(
            f"{strategy.name} keeps parameters in the type in which they are computed with, and this precision keeps "
            "others: take fsdp or hsdp, or bf16, or bf16-autocast"
        )


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
    kinds: tuple[str, ...] = ()
    """Kind of each op."""

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
            tuple(op.kind for op in ops),
        )

    @property
    def is_update(self) -> NDArray[np.bool_]:
        """Which ops are of the update."""
        phases: tuple[tuple[str, object], ...] = self.ops[0]  # type: ignore[assignment]
        return np.array([phase == "update" for phase, _ in phases], np.bool_)


class StepSource(ABC):
    """A job is known by this before it is planned: one rank's work at any micro-batch and split."""

    @property
    def of(self) -> str:
        """Return what its times are those of, for a reader."""
        return "predicted kernels"

    @abstractmethod
    def work(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> RankWork:
        """Return the work of one rank for one micro-batch.

        Args:
            batch: examples of the micro-batch, from 1 up.
            degrees: of the job; only ``SPLITS`` change what a rank computes.
            strategies: of the job, with the settings by which they divide operators; defaults for those not among them.

        Raises:
            CdmppError: a batch or a split that the source does not know, with what it knows.
        """

    def times(
        self,
        batch: int,
        degrees: ParallelDegrees,
        strategies: Sequence[Strategy] = (),  # noqa: ARG002
    ) -> StepTimes | None:
        """Return the times that ``work`` at the same arguments has, where they are known without its ops.

        None: they are not. ``CdmppError`` as of ``work``.
        """
        return None

    @abstractmethod
    def limits(self) -> Mapping[str, int]:
        """Return the largest possible value of each degree that has one here; others have none."""

    def refusal(self, degree: str, ranks: int, strategies: Sequence[Strategy] = ()) -> str:  # noqa: ARG002
        """Return the layer and the rule that keep so many ranks from dividing operators along one of ``SPLITS``.

        Empty where the source does not know them; ``strategies`` as of ``work``.
        """
        return ""

    def prepare(  # noqa: B027
        self, batches: Iterable[int], degrees: Iterable[ParallelDegrees], strategies: Sequence[Strategy] = ()
    ) -> None:
        """Make ready for ``work`` at all combinations, where that is faster together; nothing else changes."""


class BehindSource(StepSource):
    """It changes the work of another source, and knows as much."""

    nominal: StepSource

    @property
    def of(self) -> str:
        """Return what the times of the source are those of, for a reader."""
        return self.nominal.of

    def limits(self) -> Mapping[str, int]:
        """Return those of the source."""
        return self.nominal.limits()

    def refusal(self, degree: str, ranks: int, strategies: Sequence[Strategy] = ()) -> str:
        """Return that of the source."""
        return self.nominal.refusal(degree, ranks, strategies)

    def prepare(
        self, batches: Iterable[int], degrees: Iterable[ParallelDegrees], strategies: Sequence[Strategy] = ()
    ) -> None:
        """Prepare the source."""
        self.nominal.prepare(batches, degrees, strategies)


def split_of(degrees: ParallelDegrees) -> tuple[tuple[str, int], ...]:
    """Return the degrees of ``SPLITS`` above 1 with their ranks."""
    return tuple((name, ranks) for name in SPLITS if (ranks := getattr(degrees, name)) > 1)


def one_split_of(degrees: ParallelDegrees) -> tuple[str, int]:
    """Return the split degree above 1 and its ranks, or ``("", 1)``, for a source that knows one of them at a time.

    ``CdmppError``: two of them.
    """
    found = split_of(degrees)
    if len(found) > 1:
        given = " and ".join(f"{name}={ranks}" for name, ranks in found)
        raise CdmppError(f"degrees {given}: these operators are known as divided along one of them at a time")
    return found[0] if found else ("", 1)


def check_whole(degrees: ParallelDegrees, source: str) -> None:
    """Raise ``CdmppError`` where operators are divided, of which ``source`` tells nothing."""
    for name, _ in split_of(degrees):
        raise CdmppError(f"{source} does not tell what {TITLES[name]} makes of its operators: leave it out")
