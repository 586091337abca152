"""One job of a large language model under Megatron-like frameworks: tensor, pipeline and data parallel ranks.

A stage's passes follow from its ops, which the host dispatches while the device runs earlier ones; stages follow the
schedule of the product, exchanges cost what its topologies say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.plans.large_factors import Factors
from benchmarks.plans.large_pieces import BLOCK, EMBEDDING, HEAD, Exchange, Pass, Pieces
from cdmpp.collectives.topology import Topology
from cdmpp.plans.schedules import SCHEDULES

Floats = NDArray[np.float64]
_ACCUMULATED = 3
"""Elements that move where a gradient is added to that of earlier micro-batches: two are read, one is written."""


class Run(NamedTuple):
    """Ops that a host dispatches one after the other, and that a device runs in order, each once it was dispatched."""

    host_s: float = 0.0
    """Seconds in which the host dispatches them."""
    device_s: float = 0.0
    """Seconds that the device is busy."""
    whole_s: float = 0.0
    """Seconds from the first dispatch to the end of the last op, where nothing else runs."""

    @classmethod
    def of(cls, host_s: Floats, device_s: Floats) -> Run:
        """Return the run of some ops, from the seconds of each."""
        if not len(host_s):
            return cls()
        ready_s, rest_s = np.cumsum(host_s), np.cumsum(device_s[::-1])[::-1]
        return cls(float(ready_s[-1]), float(rest_s[0]), float((ready_s + rest_s).max()))

    def __add__(self, other: Run) -> Run:  # type: ignore[override]
        """Return the run of these ops, then the others."""
        whole_s = max(self.whole_s + other.device_s, self.host_s + other.whole_s)
        return Run(self.host_s + other.host_s, self.device_s + other.device_s, whole_s)

    def times(self, many: int) -> Run:
        """Return the run of the same ops again and again."""
        if not many:
            return Run()
        whole_s = self.whole_s + (many - 1) * max(self.host_s, self.device_s)
        return Run(many * self.host_s, many * self.device_s, whole_s)

    def seconds(self, unhidden: float) -> float:
        """Return the seconds of a run that begins when the device has nothing else to do."""
        return self.whole_s + unhidden * min(self.host_s, self.device_s)

    def steady_s(self, unhidden: float) -> float:
        """Return the seconds that each takes of endless runs: the host runs on."""
        return max(self.host_s, self.device_s) + unhidden * min(self.host_s, self.device_s)


@dataclass(frozen=True)
class Links:
    """Exchanges of one job between groups of its ranks: tensor ranks are neighbours, then replicas, then stages."""

    topology: Topology

    @cached_property
    def _known(self) -> dict[tuple[str, int, range], tuple[float, float, bool]]:
        return {}

    def is_far(self, members: range) -> bool:
        """Return True for ranks of more than one node."""
        return self.topology.shape(members).nodes > 1

    def seconds(self, one: Exchange, members: range, factors: Factors) -> float:
        """Return the seconds of one exchange of a group of ranks, with the bandwidth that is reached."""
        if len(members) < 2 or not one.bytes:
            return 0.0
        if (key := (one.kind, one.bytes, members)) not in self._known:
            whole_s = float(self.topology.latency_s(one.kind, np.array([float(one.bytes)]), members)[0])
            start_s = min(self.topology.start_up_s(one.kind, members), whole_s)
            self._known[key] = start_s, whole_s - start_s, self.is_far(members)
        start_s, rest_s, is_far = self._known[key]
        return one.times * (start_s + rest_s / (factors.between if is_far else factors.inside))


@dataclass(frozen=True, eq=False)
class Stages:
    """The stages of one replica, for one size of a micro-batch."""

    pieces: Pieces
    links: Links
    tensor: int
    data: int
    blocks: tuple[int, ...]
    """Blocks of each stage."""
    message_bytes: int
    """Bytes that each tensor rank of a stage sends for one micro-batch."""
    block_parameters: int
    """Parameters of a block that one rank has."""
    embedding_parameters: int
    head_parameters: int
    """Those of the head that are not those of the embedding on the same stage."""
    memory_rate: float
    """Bytes a second that kernels reach of the device's memory."""
    tied_parameters: int = 0
    """Those of the head that are also those of the embedding on another stage."""
    gradient_bytes: int = 2
    """One element of a gradient has so many, as it is added up and exchanged."""
    stalls: bool = False
    """True where every pass of a micro-batch takes ``Factors.stall_s`` longer."""
    gathered_bytes: int = 0
    """Replicas gather so many of a parameter after the update, of which each did a part (ZeRO 1); 0: each did all."""

    @cached_property
    def parameters(self) -> Floats:
        """Parameters of one rank of each stage."""
        found = np.array([float(self.block_parameters * many) for many in self.blocks])
        found[0] += self.embedding_parameters
        found[-1] += self.head_parameters
        return found

    @property
    def pipeline(self) -> int:
        """Return the number of stages."""
        return len(self.blocks)

    def passes_s(self, factors: Factors) -> tuple[Floats, Floats]:
        """Return the seconds of a forward and of a backward pass of each stage, with the messages that it waits for."""
        found, message_s = np.zeros((2, self.pipeline)), 0.0
        if self.pipeline > 1:
            neighbours = range(0, self.tensor * self.data + 1, self.tensor * self.data)
            message_s = factors.far_message_s if self.links.is_far(neighbours) else factors.message_s
            message_s += self.links.seconds(Exchange("send_recv", self.message_bytes), neighbours, factors)
        made = {
            (name, phase): self._run(getattr(one, phase), factors)
            for name, one in self.pieces.each.items()
            for phase in ("forward", "backward")
        }
        known = dict[tuple[int, bool, bool], tuple[float, float]]()
        for stage in range(self.pipeline):
            first, last = stage == 0, stage == self.pipeline - 1
            if (key := (self.blocks[stage], first, last)) not in known:
                known[key] = self._passes_s(*key, factors, made)
            found[:, stage] = known[key]
            found[:, stage] += message_s * np.array([not first, not last])
        return found[0], found[1]

    def _passes_s(
        self, blocks: int, first: bool, last: bool, factors: Factors, made: Mapping[tuple[str, str], Run]
    ) -> tuple[float, float]:
        """Seconds of both passes of a stage; of a stage that waits for nobody all are of the backward pass."""
        parts = ((EMBEDDING, int(first)), (BLOCK, blocks), (HEAD, int(last)))
        forward = sum((made[name, "forward"].times(many) for name, many in parts), Run())
        backward = sum((made[name, "backward"].times(many) for name, many in parts[::-1]), Run())
        parameters = blocks * self.block_parameters + first * self.embedding_parameters + last * self.head_parameters
        added_s = factors.compute * _ACCUMULATED * self.gradient_bytes * parameters / self.memory_rate
        backward += Run(0.0, added_s, added_s)
        if self.pipeline > 1:
            return forward.seconds(factors.unhidden), backward.seconds(factors.unhidden)
        return 0.0, (forward + backward).steady_s(factors.unhidden)

    def _run(self, one: Pass, factors: Factors) -> Run:
        """A piece's ops, then its exchanges."""
        found = Run.of(factors.host * one.host_s, factors.compute * one.device_s)
        for each in one.exchanges if self.tensor > 1 else ():
            seconds = self.links.seconds(each, range(self.tensor), factors)
            host_s = factors.collective_host_s * each.times
            found += Run(host_s, seconds, host_s + seconds)
        return found


@dataclass(frozen=True)
class Job:
    """One plan of one network."""

    stages: Stages
    micro_batches: int

    def seconds(self, factors: Factors, passes_s: tuple[Floats, Floats] | None = None) -> float:
        """Return the seconds of one step; ``passes_s``: those of the stages where they are known."""
        return sum(self.parts(factors, passes_s).values())

    def parts(self, factors: Factors, passes_s: tuple[Floats, Floats] | None = None) -> dict[str, float]:
        """Return the seconds of one step by cause; they add up to the step."""
        forward_s, backward_s = passes_s or self.stages.passes_s(factors)
        many = np.array([self.micro_batches])
        whole_s = float(SCHEDULES["1f1b"]().passes_s(forward_s[np.newaxis], backward_s[np.newaxis], many)[0])
        busy_s = float((forward_s + backward_s).max()) * self.micro_batches
        return {
            "passes": busy_s,
            "bubble": whole_s - busy_s,
            "gradients": self._gradients_s(factors),
            "update": self._update_s(factors),
            "stalls": self.stages.stalls * (self.micro_batches + self.stages.pipeline - 1) * factors.stall_s,
            "step": factors.step_s,
        }

    @property
    def _replicas(self) -> range:
        own = self.stages
        return range(0, own.tensor * own.data, own.tensor)

    def _gradients_s(self, factors: Factors) -> float:
        """Seconds in which replicas, then both ends of a pipeline, add up gradients after the last backward pass."""
        own = self.stages
        kind = "reduce_scatter" if own.gathered_bytes else "all_reduce"
        size, stride = int(own.gradient_bytes * own.parameters.max()), own.tensor * own.data
        found = own.links.seconds(Exchange(kind, size), self._replicas, factors)
        if own.pipeline > 1 and own.tied_parameters:
            ends = range(0, stride * own.pipeline, stride * (own.pipeline - 1))
            tied = own.gradient_bytes * own.tied_parameters
            found += own.links.seconds(Exchange("all_reduce", tied), ends, factors)
        return found

    def _update_s(self, factors: Factors) -> float:
        """Seconds of the update of the heaviest stage, and in which replicas gather its parameters."""
        own = self.stages
        heaviest, shares = float(own.parameters.max()), own.data if own.gathered_bytes else 1
        found = heaviest / shares * own.pieces.update_s * factors.compute
        gathered = Exchange("all_gather", int(own.gathered_bytes * heaviest))
        return found + own.links.seconds(gathered, self._replicas, factors)


class MeasuredRow(Protocol):
    """A row of a public table, whose step took ``step_s`` seconds."""

    @property
    def step_s(self) -> float:
        """Return the measured seconds."""
        ...


R = TypeVar("R", bound=MeasuredRow)


@dataclass(frozen=True)
class MeasuredJobs(Generic[R]):
    """Measured plans as jobs."""

    rows: tuple[R, ...]
    jobs: tuple[Job, ...]

    def where(self, seen: Sequence[bool] | NDArray[np.bool_]) -> Self:
        """Keep some."""
        places = np.flatnonzero(seen)
        return replace(self, rows=tuple(self.rows[one] for one in places), jobs=tuple(self.jobs[one] for one in places))

    @property
    def measured_s(self) -> Floats:
        """Return the measured seconds."""
        return np.array([row.step_s for row in self.rows])

    def seconds(self, factors: Factors) -> Floats:
        """Return the predicted seconds; plans that differ in their micro-batches alone share their passes."""
        stages = dict.fromkeys(one.stages for one in self.jobs)
        known = {one: one.passes_s(factors) for one in stages}
        return np.array([one.seconds(factors, known[one.stages]) for one in self.jobs])
