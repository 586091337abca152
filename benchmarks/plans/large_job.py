"""One job of a large language model under Megatron-like frameworks: tensor, pipeline and data parallel ranks.

A stage's passes follow from its ops, which the host dispatches while the device runs earlier ones; stages follow the
schedule of the product, exchanges cost what its topologies say.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from benchmarks.plans.large_factors import Factors
from benchmarks.plans.large_pieces import BLOCK, EMBEDDING, HEAD, Exchange, Pass, Pieces
from cdmpp.collectives.topology import Topology
from cdmpp.plans.schedules import SCHEDULES

Floats = NDArray[np.float64]
_ACCUMULATED = 3
"""Elements that move where a gradient is added to that of earlier micro-batches: two are read, one is written."""


@dataclass(frozen=True)
class Links:
    """Exchanges of one job between groups of its ranks: tensor ranks are neighbours, then replicas, then stages."""

    topology: Topology

    @cached_property
    def _known(self) -> dict[tuple[str, int, range], tuple[float, float, bool]]:
        return {}

    def seconds(self, one: Exchange, members: range, factors: Factors) -> float:
        """Return the seconds of one exchange of a group of ranks, with the bandwidth that is reached."""
        if len(members) < 2 or not one.bytes:
            return 0.0
        if (key := (one.kind, one.bytes, members)) not in self._known:
            whole_s = float(self.topology.latency_s(one.kind, np.array([float(one.bytes)]), members)[0])
            start_s = min(self.topology.start_up_s(one.kind, members), whole_s)
            self._known[key] = start_s, whole_s - start_s, self.topology.shape(members).nodes > 1
        start_s, rest_s, is_far = self._known[key]
        return one.times * (start_s + rest_s / (factors.between if is_far else factors.inside))


@dataclass(frozen=True, eq=False)
class Stages:
    """The stages of one replica, for one size of a micro-batch."""

    pieces: Pieces
    links: Links
    tensor: int
    data: int
    pipeline: int
    layers: int
    message_bytes: int
    """Bytes that a stage sends for one micro-batch; every tensor rank sends all of them."""
    block_parameters: int
    """Parameters of a block that one rank has."""
    embedding_parameters: int
    head_parameters: int
    """Those of the head on another stage than the embedding; on the same one they may be the same."""
    memory_rate: float
    """Bytes a second that kernels reach of the device's memory."""
    gradient_bytes: int = 2
    """Of one element of a gradient, as it is added up and exchanged."""

    @cached_property
    def parameters(self) -> Floats:
        """Parameters of one rank of each stage."""
        found = np.array([float(self.block_parameters * self.blocks(one)) for one in range(self.pipeline)])
        found[0] += self.embedding_parameters
        found[-1] += self.head_parameters
        return found

    def blocks(self, stage: int) -> int:
        """Return the blocks of a stage: the first ones have one more where they cannot be shared out evenly."""
        return self.layers // self.pipeline + (stage < self.layers % self.pipeline)

    def passes_s(self, factors: Factors) -> tuple[Floats, Floats]:
        """Return the seconds of a forward and of a backward pass of each stage, with the messages that it waits for."""
        found, message_s = np.zeros((2, self.pipeline)), 0.0
        if self.pipeline > 1:
            neighbours = range(0, self.tensor * self.data + 1, self.tensor * self.data)
            message_s = factors.message_s
            message_s += self.links.seconds(Exchange("send_recv", self.message_bytes), neighbours, factors)
        known = dict[tuple[int, bool, bool], tuple[float, float]]()
        for stage in range(self.pipeline):
            first, last = stage == 0, stage == self.pipeline - 1
            if (key := (self.blocks(stage), first, last)) not in known:
                known[key] = self._passes_s(*key, factors, float(self.parameters[stage]))
            found[:, stage] = known[key]
            found[:, stage] += message_s * np.array([not first, not last])
        return found[0], found[1]

    def _passes_s(
        self, blocks: int, first: bool, last: bool, factors: Factors, parameters: float
    ) -> tuple[float, float]:
        forward, backward = (self._ops(phase, blocks, first, last, factors) for phase in ("forward", "backward"))
        added_s = factors.compute * _ACCUMULATED * self.gradient_bytes * parameters / self.memory_rate
        backward = np.append(backward[0], 0.0), np.append(backward[1], added_s)
        if self.pipeline > 1:
            return _cold_s(*forward, factors.unhidden), _cold_s(*backward, factors.unhidden)
        # one stage waits for nobody: its host runs on from pass to pass
        host_s, device_s = (np.concatenate(pair) for pair in zip(forward, backward, strict=True))
        return 0.0, _steady_s(host_s, device_s, factors.unhidden)

    def _ops(self, phase: str, layers: int, first: bool, last: bool, factors: Factors) -> tuple[Floats, Floats]:
        """Seconds of the host and of the device for each op of a pass, exchanges at the end of their pieces."""
        names = [*[EMBEDDING] * first, *[BLOCK] * layers, *[HEAD] * last]
        made = {name: self._piece(getattr(self.pieces.each[name], phase), factors) for name in dict.fromkeys(names)}
        ordered = names if phase == "forward" else names[::-1]
        return np.concatenate([made[name][0] for name in ordered]), np.concatenate([made[name][1] for name in ordered])

    def _piece(self, one: Pass, factors: Factors) -> tuple[Floats, Floats]:
        members = range(self.tensor)
        host_s, device_s = [factors.host * one.host_s], [factors.compute * one.device_s]
        for each in one.exchanges if self.tensor > 1 else ():
            host_s.append(np.array([factors.collective_host_s * each.times]))
            device_s.append(np.array([self.links.seconds(each, members, factors)]))
        return np.concatenate(host_s), np.concatenate(device_s)


def _cold_s(host_s: Floats, device_s: Floats, unhidden: float) -> float:
    """Seconds of ops of which the host dispatches the first when the device has nothing else to do."""
    ready_s, rest_s = np.cumsum(host_s), np.cumsum(device_s[::-1])[::-1]
    return float((ready_s + rest_s).max()) + unhidden * min(float(host_s.sum()), float(device_s.sum()))


def _steady_s(host_s: Floats, device_s: Floats, unhidden: float) -> float:
    """Seconds that the same ops take again and again, without an end."""
    both = float(host_s.sum()), float(device_s.sum())
    return max(both) + unhidden * min(both)


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
            "update": float(self.stages.parameters.max()) * self.stages.pieces.update_s * factors.compute,
            "step": factors.step_s,
        }

    def _gradients_s(self, factors: Factors) -> float:
        """Seconds in which replicas, then both ends of a pipeline, add up gradients after the last backward pass."""
        own = self.stages
        size, stride = int(own.gradient_bytes * own.parameters.max()), own.tensor * own.data
        found = own.links.seconds(Exchange("all_reduce", size), range(0, stride, own.tensor), factors)
        if own.pipeline > 1:
            ends = range(0, stride * own.pipeline, stride * (own.pipeline - 1))
            tied = int(own.gradient_bytes * own.head_parameters)
            found += own.links.seconds(Exchange("all_reduce", tied), ends, factors)
        return found
