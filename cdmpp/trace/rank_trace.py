"""RankTrace: what one rank did in the traced steps, whichever framework and profiler told it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cdmpp.trace.inventory import Inventory

HOST = "host"
"""Name and stream of the launches that a host makes for its device."""


class Op(NamedTuple):
    """It is an operator of a CPU, a kernel of a device, or its launch, and overlaps no other one of its stream."""

    name: str
    phase: str
    """One of ``network.training_step.PHASES``."""
    start_s: float
    """Seconds by the clock of its rank."""
    end_s: float
    events: int = 1
    """Events of the trace that it holds, itself among them."""
    stream: str = "compute"
    """Queue that it runs in."""
    waits: tuple[int, ...] = ()
    """Places of earlier ops on other streams that it waits for."""


@dataclass(frozen=True)
class Exchange:
    """This is one rank's part in a collective, or in a message to another rank."""

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
    sequence: int | None = None
    """Number that all ranks of the group count it by; None where the trace does not tell."""


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
    """This is one step of one rank. Ops and exchanges stand in the order in which they were launched."""

    number: int
    start_s: float
    end_s: float
    ops: tuple[Op, ...]
    exchanges: tuple[Exchange, ...]
    gradients: tuple[GradientReady, ...] = ()
    events: int = 0
    """Events of the host in the step: the profiler delays it by as many."""
    host_s: float | None = None
    """Length of the step by the host's marks; None where its operators run on the host."""

    @cached_property
    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Starts and ends of the ops, in seconds, and the numbers of their streams; -1: the host's launches."""
        numbers = {HOST: -1}
        streams = [numbers.setdefault(op.stream, len(numbers)) for op in self.ops]
        starts_s, ends_s = ([op.start_s for op in self.ops], [op.end_s for op in self.ops])
        return np.array(starts_s), np.array(ends_s), np.array(streams, int)

    @property
    def signature(self) -> tuple:
        """Steps that did the same have the same signature."""
        on_host = self.host_s is None
        ops = tuple((op.name, op.stream) for op in self.ops if op.stream != HOST)
        return ops, tuple((one.kind, one.bytes, one.after if on_host else 0) for one in self.exchanges)


@dataclass(frozen=True)
class RankTrace:
    """These are the traced steps of one rank."""

    rank: int
    world_size: int
    backend: str
    steps: tuple[StepTrace, ...]
    source: str = ""
    """File that it was read from."""
    workers: int = 1
    """Exchanges that run at a time: threads of gloo, streams of NCCL."""
    inventory: Inventory = field(default_factory=Inventory)
    """What was read."""
    refusal: str = ""
    """Why there is no step; empty where there are some."""
    is_partial: bool = False
    """True if ranks of its job have no trace: what they took part in cannot be matched."""
    subgroups: Mapping[str, int] = field(default_factory=dict)
    """Name and number of ranks of the job's process groups that are smaller than its world."""
    is_alone: bool = False
    """True if the file does not say how many ranks its job has."""
