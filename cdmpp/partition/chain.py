"""Chain: the stages of a partition in order, with their devices; and what each takes and holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.partition.devices import StageDevice
from cdmpp.partition.downsets import Downsets
from cdmpp.partition.problem import PartitionProblem, StageCosts


@dataclass(frozen=True)
class Part:
    """A stage holds some layers, on one device or on several equal ones that share its micro-batches."""

    layers: tuple[int, ...]
    """Places of its layers, rising."""
    kind: int
    """Number of the kind of its devices in ``PartitionProblem.kinds``."""
    replicas: int = 1


@dataclass(frozen=True)
class PartCost:
    """Seconds that one stage takes for a micro-batch, and bytes that it holds."""

    stage_s: float
    """Seconds with exposed messages."""
    forward_s: float
    """Seconds of a forward pass on one of its devices, with what the host adds to it."""
    backward_s: float
    """The same of a backward pass, with the second forward pass where it runs again."""
    update_s: float
    """Seconds of one update, with the sums over replicas and of tied parameters."""
    send_s: float
    """Seconds that it stands still behind each message that it sends while it computes."""
    copy_s: float
    """Seconds of copying its weights to the worker that runs forward passes; 0 where one worker runs both."""
    messages: tuple[int, int]
    """Messages to the next stage, and back from it."""
    message_bytes: tuple[float, float]
    """Their bytes."""
    held_bytes: float
    weight_bytes: float
    stash_bytes: float
    passing_bytes: float
    live: int
    """Micro-batches that it holds at a time."""
    versions: int
    staleness: int
    """Updates between the forward pass of a micro-batch and the update with its gradient."""

    @property
    def bytes(self) -> float:
        """Return the most bytes that one of its devices holds."""
        return self.weight_bytes + self.stash_bytes + self.passing_bytes


@dataclass(frozen=True)
class Chain:
    """Stages of a problem, first to last."""

    problem: PartitionProblem
    parts: tuple[Part, ...]

    @cached_property
    def devices_after(self) -> tuple[int, ...]:
        """Count the devices of the stages after each one."""
        counts = [one.replicas for one in self.parts]
        return tuple(sum(counts[place + 1 :]) for place in range(len(counts)))

    @property
    def devices(self) -> int:
        """Return how many devices have a stage."""
        return sum(one.replicas for one in self.parts)

    @cached_property
    def _costs(self) -> StageCosts:
        has = np.zeros((len(self.parts) + 1, self.problem.graph.count), np.bool_)
        for place, one in enumerate(self.parts):
            has[place + 1 :, list(one.layers)] = True
        return StageCosts(self.problem, Downsets(self.problem.graph, has))

    def link(self, place: int) -> AlphaBeta:
        """Return the link of the device of a stage; beyond both ends that of the last one."""
        return self.problem.kinds[self.parts[min(max(place, 0), len(self.parts) - 1)].kind].link

    @cached_property
    def costs(self) -> tuple[PartCost, ...]:
        """Return the costs of all stages."""
        return tuple(self._cost(place, one) for place, one in enumerate(self.parts))

    def _cost(self, place: int, one: Part) -> PartCost:
        made, problem, device = self._costs, self.problem, self.problem.kinds[one.kind]
        at, own, after = (place, place + 1), list(one.layers), self.devices_after[place]
        forward_s, host_s = float(device.forward_s[own].sum()), 2 * [device.host.pass_s]
        if problem.overlap:
            received = made.received_s(one.kind)
            host_s = [
                device.host.pass_s + float(received[0][place, 0]),
                device.host.pass_s + float(received[1][0, at[1]]),
            ]
        crossing = made.downsets.crossing(), made.downsets.crossing(is_backward=True)
        copy_s = float(made.held_bytes[at]) / device.copy_bytes_per_s if problem.schedule.passes_side_by_side else 0.0
        return PartCost(
            float(made.seconds(one.kind, self.link(place - 1), self.link(place + 1), one.replicas)[at]),
            forward_s + host_s[0],
            float(device.backward_s[own].sum()) + problem.recompute * forward_s + host_s[1],
            float(made.update_s(one.kind, one.replicas)[at]),
            device.host.send_s if problem.overlap else 0.0,
            copy_s,
            (int(crossing[0][0][at[1]]), int(crossing[1][0][at[1]])),
            (float(crossing[0][1][at[1]]), float(crossing[1][1][at[1]])),
            float(made.held_bytes[at]),
            float(made.weight_bytes(after, one.replicas)[at]),
            float(made.stash_bytes(after, one.replicas)[at]),
            float(made.passing_bytes()[at]),
            problem.live(after, one.replicas),
            problem.versions(after, one.replicas, place == 0),
            problem.staleness(after, one.replicas, place == 0),
        )

    @property
    def slowest_s(self) -> float:
        """Return the seconds of the slowest stage: a micro-batch goes through each that often at most."""
        return max(one.stage_s for one in self.costs)

    @property
    def squares(self) -> float:
        """Return the sum of squares, by which chains that are equally fast are told apart."""
        return sum(one.stage_s**2 for one in self.costs)

    @property
    def missing_bytes(self) -> float:
        """Return the most bytes by which a stage exceeds its device; 0 where all fit."""
        limits = (self.problem.kinds[one.kind].memory_bytes for one in self.parts)
        return max(max(0.0, cost.bytes - limit) for cost, limit in zip(self.costs, limits, strict=True))

    @property
    def fits(self) -> bool:
        """Return True if no stage exceeds its device."""
        return not self.missing_bytes

    def split_tied(self) -> tuple[str, ...]:
        """Name the tied parameters of which several stages hold a copy."""
        of = {layer: place for place, one in enumerate(self.parts) for layer in one.layers}
        return tuple(one.name for one in self.problem.graph.tied if len({of[place] for place in one.readers}) > 1)

    def names(self) -> tuple[tuple[str, ...], ...]:
        """Return the devices of each stage by name; of equal devices the first ones come first."""
        left = [[one.name for one in self.problem.devices if one.key == kind.key] for kind in self.problem.kinds]
        found = []
        for one in self.parts:
            found.append(tuple(left[one.kind][: one.replicas]))
            left[one.kind] = left[one.kind][one.replicas :]
        return tuple(found)


def chain_of(problem: PartitionProblem, parts: Sequence[tuple[Sequence[int], int, int]]) -> Chain:
    """Return a chain of stages, each given by its layers, the kind of its devices and their number."""
    return Chain(problem, tuple(Part(tuple(sorted(layers)), kind, many) for layers, kind, many in parts))


def merged(chain: Chain) -> Chain:
    """Join neighbours while that makes the slowest stage no slower: what a cut balances is less than its messages cost.

    A joined stage is on the device of one of the two. What is not joined keeps its device.
    """
    while len(chain.parts) > 1:
        tried = [
            Chain(chain.problem, (*chain.parts[:place], _join(chain, place, keeps), *chain.parts[place + 2 :]))
            for place in range(len(chain.parts) - 1)
            for keeps in (0, 1)
        ]
        best = min(tried, key=lambda one: (one.missing_bytes, one.slowest_s, one.squares))
        before = (chain.missing_bytes, chain.slowest_s * (1 + 1e-12))
        if (best.missing_bytes, best.slowest_s) > before:
            return chain
        chain = best
    return chain


def _join(chain: Chain, place: int, keeps: int) -> Part:
    both = chain.parts[place : place + 2]
    return Part(tuple(sorted((*both[0].layers, *both[1].layers))), both[keeps].kind, both[keeps].replicas)


def ideal_s(problem: PartitionProblem) -> float:
    """Return a time below which no slowest stage can be: all layers divided evenly over all devices, without messages.

    A device that is slow for some layers counts by the layer for which it is best.
    """
    least, shares = least_seconds(problem), capacities(problem)
    single = max(float(least[problem.graph.group_of == group].sum()) for group in range(len(problem.graph.reads)))
    most = max(shares) * (len(problem.devices) if problem.replicas else 1)
    whole = math.fsum(share * count for share, count in zip(shares, problem.counts, strict=True))
    return max(float(least.sum()) / whole, single / most)


def least_seconds(problem: PartitionProblem) -> np.ndarray:
    """Return the least seconds that each layer adds to a stage, on the device that is fastest for it."""
    return np.min([_seconds_on(problem, one) for one in problem.kinds], axis=0)


def _seconds_on(problem: PartitionProblem, device: StageDevice) -> np.ndarray:
    """Both passes of each layer; where they run side by side, half of that: the longer one counts."""
    both = device.seconds + problem.recompute * device.forward_s
    return 0.5 * both if problem.schedule.passes_side_by_side else both


def capacities(problem: PartitionProblem) -> list[float]:
    """Return for each kind of device what part of ``least_seconds`` one of them runs in a second, at most."""
    least, found = least_seconds(problem), list[float]()
    for kind in problem.kinds:
        own = _seconds_on(problem, kind)
        ratios = np.divide(least, own, out=np.zeros_like(least), where=own > 0)
        found.append(float(ratios.max(initial=0.0)) or 1.0)
    return found
