"""RankTrace: what one rank did in the traced steps, whichever framework and profiler told it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Op:
    """An operator of a CPU, or a kernel of a GPU; it overlaps no other one of its rank."""

    name: str
    phase: str
    """One of ``network.training_step.PHASES``."""
    start_s: float
    """Seconds by the clock of its rank."""
    end_s: float
    events: int = 1
    """Events of the trace that it holds, itself among them."""


@dataclass(frozen=True)
class Exchange:
    """One rank's part in a collective, or in a message to another rank."""

    kind: str
    """A key of ``collectives.collective.KINDS``, or what the framework calls it."""
    bytes: int
    """Bytes as ``KINDS`` counts them; 0: unknown."""
    start_s: float
    """Seconds at which this rank arrived: waiting for the others is part of the span."""
    end_s: float
    after: int
    """Place of the op after which it was launched; -1: before the first."""
    group: str = ""
    """Whom it is exchanged with: a process group, or ``0->1``."""
    waited_by: int | None = None
    """Place of the op that the framework makes wait for it; None where the trace does not tell."""


@dataclass(frozen=True)
class GradientReady:
    """A parameter's gradient is there."""

    bytes: int
    after: int
    """Place of the op that ends last of those that make it."""
    dtype: str = "float32"
    """Its data type."""


@dataclass(frozen=True)
class StepTrace:
    """One step of one rank. Ops and exchanges stand in the order in which they were launched."""

    number: int
    start_s: float
    end_s: float
    ops: tuple[Op, ...]
    exchanges: tuple[Exchange, ...]
    gradients: tuple[GradientReady, ...] = ()
    events: int = 0
    """Events of the host in the step: the profiler delays it by as many."""

    @property
    def signature(self) -> tuple:
        """Equal for steps that did the same."""
        return tuple(op.name for op in self.ops), tuple((e.kind, e.bytes, e.after) for e in self.exchanges)


@dataclass(frozen=True)
class RankTrace:
    """The traced steps of one rank."""

    rank: int
    world_size: int
    backend: str
    steps: tuple[StepTrace, ...]
    source: str = ""
    """File that it was read from."""
    workers: int = 1
    """Exchanges that run at a time: threads of gloo, streams of NCCL."""
