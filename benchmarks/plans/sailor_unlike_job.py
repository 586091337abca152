"""Sailor's plans on unlike GPUs asked of the product: a node is a rank, with the layers and the adapter of its GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations

import numpy as np

from benchmarks.plans.sailor_data import ITEM_BYTES, Measured, Trained, UnlikeLinks
from benchmarks.plans.sailor_job import Job
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.collective_model import CollectiveEstimate
from cdmpp.collectives.curve import Curve
from cdmpp.collectives.messages import ring_of
from cdmpp.collectives.topology import FarCost, Topology
from cdmpp.collectives.unlike_topology import UnlikeTopology
from cdmpp.plans.lower import Lowered, lower
from cdmpp.plans.plan import Plan
from cdmpp.plans.sources.table import TableSource
from cdmpp.plans.sources.unlike import UnlikeSource
from cdmpp.steps.replay import Replay, replay


@dataclass(frozen=True, kw_only=True)
class HalfDuplexUnlike(UnlikeTopology):
    """Two nodes send one after the other, as in the job on equal GPUs, at the rate of the slower adapter."""

    @cached_property
    def rates(self) -> dict[str, float]:
        each = [self.parts[name].far_rate for name in self.node_devices]
        pairs = combinations(range(self.ranks), 2)
        return {self.way(a, b)[0]: min(each[a], each[b]) for a, b in pairs}

    def way(self, source: int, target: int) -> tuple[str, ...]:
        return (f"{min(source, target)} and {max(source, target)}",)


_EQUAL = dict.fromkeys(
    ("between", "inside"), Curve("", None, "nccl", "send_recv", 2, 1, np.array([1.0, 1e9]), np.array([1e-6, 1.0]))
)
"""Links where only bytes are asked for."""


@dataclass(frozen=True)
class UnlikeJob:
    """One plan, with what was measured of the layers on each GPU."""

    trained: Trained
    profiles: Mapping[str, Mapping[int, tuple[Measured, ...]]]
    """GPU -> examples -> layers."""
    links: UnlikeLinks

    @cached_property
    def on(self) -> dict[str, Job]:
        """The plan as it would be on nodes of one GPU."""
        names = dict.fromkeys(name for stage in self.trained.on for name in stage)
        return {name: Job(self.trained, self.profiles[name], {}) for name in names}

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The GPU of each node, stage after stage."""
        return tuple(name for stage in self.trained.on for name in stage)

    @cached_property
    def plan(self) -> Plan:
        return replace(next(iter(self.on.values())).plan, devices=self.devices)

    @cached_property
    def topology(self) -> Topology:
        """Nodes send over one adapter, which all GPUs of a node share.

        A message is a small one with the shape, then the parts of all GPUs, which those of the receiving node gather.
        """
        ranks, parts = len(self.devices), dict[str, Topology]()
        for name in self.on:
            between = self.links.between[name]
            rate = self._rate(name)
            cost = self._cost(between, self.links.inside[name, self.trained.tensor])
            parts[name] = Topology(name, ranks, "nccl", cost, rate, ranks, cost, rate)
        first = next(iter(parts.values()))
        return HalfDuplexUnlike(
            "mit", ranks, "nccl", first.near, first.near_rate, ranks, first.far, first.far_rate,
            parts=parts, node_devices=self.devices,
        )  # fmt: skip

    def _cost(self, between: Curve, inside: Curve) -> FarCost:
        around, tensor = ring_of(between), self.trained.tensor

        @cache
        def cost(collective: Collective, flows: float = 1.0) -> CollectiveEstimate:
            if collective.kind != "send_recv":
                return around(replace(collective, bytes=tensor * collective.bytes))
            gathered_s = (tensor - 1) * inside.at(collective.bytes / tensor)
            found = float(between.at(1) + between.at(collective.bytes) + gathered_s)
            return CollectiveEstimate(found, found, found, "the authors' fits")

        return cost

    def lowered(self, host: float = 1.0, gpu: float = 1.0) -> Lowered:
        source = UnlikeSource({name: TableSource(job.rows(host, gpu)) for name, job in self.on.items()})
        return lower(source, self.plan, self.topology, self.trained.global_batch)

    def replayed(self, host: float = 1.0, gpu: float = 1.0) -> Replay:
        return replay(self.lowered(host, gpu).graph, self.topology)

    def step_s(self, host: float = 1.0, gpu: float = 1.0) -> float:
        """Replay one step."""
        return self.replayed(host, gpu).step_s

    def held_bytes(self) -> float:
        """Return the bytes of tensors of the GPU that holds most: it depends on no GPU's speed."""
        first = next(iter(self.on.values()))
        return Job(self.trained, first.profiles, _EQUAL).held_bytes()

    def slots_s(self) -> tuple[float, float, float]:
        """Return seconds by formulas: passes of the slowest stage, its messages, and a ring of its gradients."""
        one, many = self.trained, self.trained.micro_batches
        ends = np.cumsum(one.layers)
        spans = [slice(end - count, end) for end, count in zip(ends, one.layers, strict=True)]
        stages = list(zip(one.on, spans, strict=True))
        slot_s = max(
            sum(layer.forward_s + layer.backward_s for layer in self.profiles[name][one.micro_batch][span])
            for names, span in stages
            for name in names
        )
        size = ITEM_BYTES * one.micro_batch * self.profiles[self.devices[0]][one.micro_batch][0].output
        message_s = max(float(self.links.between[name].at(size)) for name in self.devices) if one.stages > 1 else 0.0
        ring_s = max(
            2 * (one.replicas - 1) / one.replicas * ITEM_BYTES * one.tensor
            * sum(layer.parameters for layer in self.profiles[names[0]][one.micro_batch][span])
            / min(self._rate(name) for name in names)
            for names, span in stages
        )  # fmt: skip
        return (many + one.stages - 1) * slot_s, 2 * many * message_s, ring_s

    def _rate(self, name: str) -> float:
        between = self.links.between[name]
        return float(np.max(between.bytes / between.latency_s))
