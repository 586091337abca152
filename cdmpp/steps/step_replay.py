"""StepReplay: one training step on several ranks, with what its time is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdmpp.steps.step_graph import StepGraph


@dataclass(frozen=True)
class RankSpan:
    """A span is one task that ran on a stream of a rank."""

    rank: int
    stream: str
    """``compute``, ``communication``, or, with parameter servers, ``server``, ``to`` or ``from`` another rank."""
    name: str
    kind: str
    """A phase, ``start``, a kind of collective, ``push``, ``sum`` or ``pull``."""
    start_s: float
    """Seconds since the start of the step."""
    end_s: float
    gap_s: float
    """Seconds after it until the stream is free."""
    is_critical: bool


@dataclass(frozen=True)
class RankShare:
    """The time of one rank has parts: computing, host, exposed and waiting sum up to the step."""

    rank: int
    phase_s: Mapping[str, float]
    """Phase -> seconds of its operations."""
    compute_s: float
    """Seconds in which any stream computes."""
    host_s: float
    """Gaps between operations and what a step takes once, where nothing computes."""
    communication_s: float
    """Seconds in which it exchanges anything, hidden or not."""
    exposed_s: float
    """Seconds of communication in which it neither computes nor is in a gap."""
    waiting_s: float
    """Nothing goes on: it waits for other ranks."""

    @property
    def overlap(self) -> float:
        """Return the share of communication that is hidden; 1 where there is none."""
        return 1.0 - self.exposed_s / self.communication_s if self.communication_s else 1.0

    @property
    def idle(self) -> float:
        """Return the share of the step in which it does not compute."""
        total = self.compute_s + self.host_s + self.exposed_s + self.waiting_s
        return 1.0 - self.compute_s / total if total else 0.0


@dataclass(frozen=True)
class HeaviestRank:
    """No rank of the job holds more at a time than this one."""

    rank: int
    part_bytes: Mapping[str, int]
    """Part of its memory, such as ``activations`` -> bytes at the peak."""

    @property
    def peak_bytes(self) -> int:
        """Return the sum of the parts."""
        return sum(self.part_bytes.values())


@dataclass(frozen=True)
class StepReplay:
    """It is one training step of all ranks in steady state."""

    strategy: str
    topology: str
    backend: str
    granularity: str
    """``collective`` or ``ring step``."""
    iteration_s: float
    """Seconds from the last end of one step to the last end of the next."""
    shares: tuple[RankShare, ...]
    """One for each rank of the replayed graph."""
    critical_s: Mapping[str, float]
    """Kind of span, or ``gap`` -> seconds on the longest chain of the step; they sum up to the step."""
    spans: tuple[RankSpan, ...]
    """Tasks in the order of their starts; a collective is listed for each of its ranks."""
    exchanges: int
    """Number of exchanges in one step."""
    sent_bytes: float
    """Bytes that the rank that sends most must send in one step."""
    alone_s: float
    """The step of one device by itself with the examples of one replica: it runs the whole model, is not slowed,
    exchanges nothing and updates all."""
    no_overlap_s: float
    """Closed form: computing with its gaps and communication one after the other; of parameter servers, one message at
    a time. A strategy without ``overlap`` takes as long, less what is exchanged in gaps, in which no kernel is there
    to run."""
    full_overlap_s: float
    """Closed form: the longer of the two; of parameter servers, what the busiest link or server takes."""
    warnings: tuple[str, ...] = ()
    ranks: int = 1
    """Ranks of the job. Each of ``shares`` stands for several that are alike where they are fewer."""
    replicas: int = 1
    """Ranks, or groups of ranks that divide the model, with examples of their own."""
    global_batch: int | None = None
    """Examples of all ranks in one step; None: unknown."""
    heaviest: HeaviestRank | None = None
    """The rank that holds most at a time, of those of the plan and not of one device by itself; None: unknown."""
    graph: StepGraph | None = field(default=None, repr=False, compare=False)
    """This was replayed; None where it was not kept."""

    @property
    def speed_up(self) -> float:
        """Return examples a second of all ranks over those of one by itself; ``ranks`` would be linear."""
        return self.replicas * self.alone_s / self.iteration_s if self.iteration_s else float(self.ranks)

    @cached_property
    def exposed_s(self) -> float:
        """Return the exposed seconds of the rank that has most."""
        return max((share.exposed_s for share in self.shares), default=0.0)

    def table(self) -> list[dict[str, Any]]:
        """Return a row a rank; units are in the names of the keys."""
        return [
            {
                "rank": share.rank,
                **{f"{phase}_s": value for phase, value in share.phase_s.items()},
                "compute_s": share.compute_s,
                "host_s": share.host_s,
                "communication_s": share.communication_s,
                "exposed_s": share.exposed_s,
                "waiting_s": share.waiting_s,
                "overlap": share.overlap,
                "idle": share.idle,
            }
            for share in self.shares
        ]

    def to_dict(self) -> dict[str, Any]:
        """Give all numbers but the spans, as JSON takes them; units are in the names of the keys."""
        return {
            "ranks": self.ranks,
            "global_batch": self.global_batch,
            "strategy": self.strategy,
            "topology": self.topology,
            "backend": self.backend,
            "granularity": self.granularity,
            "iteration_s": self.iteration_s,
            "alone_s": self.alone_s,
            "speed_up": self.speed_up,
            "no_overlap_s": self.no_overlap_s,
            "full_overlap_s": self.full_overlap_s,
            "exposed_s": self.exposed_s,
            "critical_s": dict(self.critical_s),
            "exchanges": self.exchanges,
            "sent_bytes": self.sent_bytes,
            "peak_bytes": None if self.heaviest is None else self.heaviest.peak_bytes,
            "peak_rank": None if self.heaviest is None else self.heaviest.rank,
            "part_bytes": {} if self.heaviest is None else dict(self.heaviest.part_bytes),
            "by_rank": self.table(),
            "warnings": list(self.warnings),
        }
