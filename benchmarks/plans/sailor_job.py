"""One of Sailor's plans asked of the product: measured layers are the source, fitted links the topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from benchmarks.plans.sailor_data import ITEM_BYTES, PROFILED_BLOCKS, Measured, Trained
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.collective_model import CollectiveEstimate
from cdmpp.collectives.curve import Curve
from cdmpp.collectives.messages import ring_of
from cdmpp.collectives.topology import Topology
from cdmpp.network.training_step import StepMemory
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import Lowered, lower
from cdmpp.plans.memory import Memory
from cdmpp.plans.plan import Plan
from cdmpp.plans.schedules import SCHEDULES
from cdmpp.plans.sources.table import TableSource
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.from_layers import Layer
from cdmpp.steps.replay import replay

_ADDED = 12 / 28
"""Adding the gradients of a micro-batch to their sum moves 12 bytes a parameter, Adam 28."""
_BUCKET_BYTES = 4 * 500_000_000
"""DeepSpeed's bucket: all gradients at once."""
_ORDER = "1f1b"


@dataclass(frozen=True)
class HalfDuplex(Topology):
    """Two nodes send one after the other: the runtime waits for each message before it begins the next one."""

    @cached_property
    def rates(self) -> dict[str, float]:
        pairs = (self.way(a, b)[0] for b in range(self.ranks) for a in range(b))
        return dict.fromkeys(pairs, self.far_rate)

    def way(self, source: int, target: int) -> tuple[str, ...]:
        return (f"{min(source, target)} and {max(source, target)}",)


@dataclass(frozen=True)
class Job:
    """One plan, with what was measured of its layers.

    A rank is one of the four GPUs of each node: the others do the same at the same time, each with its own adapter.
    """

    trained: Trained
    profiles: Mapping[int, tuple[Measured, ...]]
    """Examples -> layers."""
    links: Mapping[str, Curve]

    @cached_property
    def update_s(self) -> float:
        """Seconds of Adam for one parameter: all of the profiled network, which has few blocks, at once."""
        layers = self.profiles[self.trained.micro_batch]
        first, block, last = layers[0], layers[1], layers[-1]
        return first.update_s / (first.parameters + PROFILED_BLOCKS * block.parameters + last.parameters)

    def rows(self, host: float = 1.0, gpu: float = 1.0) -> list[Layer]:
        """Return the table of layers.

        At some number of examples an example takes least; what a pass takes beyond that is time in which the GPU waits
        for its host, which a whole network hides or not.

        Args:
            host: factor of the seconds of waiting.
            gpu: factor of the others.
        """
        found = []
        for examples, layers in self.profiles.items():
            for number, one in enumerate(layers):
                passes_s = []
                for name in ("forward_s", "backward_s"):
                    busy_s = min(examples * getattr(each[number], name) / many for many, each in self.profiles.items())
                    passes_s.append(host * (getattr(one, name) - busy_s) + gpu * busy_s)
                update_s = self.update_s * one.parameters
                added_s = gpu * _ADDED * update_s if self.trained.micro_batches > 1 else 0.0
                found.append(
                    Layer(
                        f"layer {number}", passes_s[0], passes_s[1] + added_s, ITEM_BYTES * one.parameters,
                        ITEM_BYTES * one.output * examples, ITEM_BYTES * one.saved * examples, update_s, examples,
                    )
                )  # fmt: skip
        return found

    @cached_property
    def plan(self) -> Plan:
        one = self.trained
        degrees, strategy = (
            ParallelDegrees(pp=one.stages, dp_replicate=one.replicas),
            DDP((_BUCKET_BYTES,), overlap=False),
        )
        if one.stages == 1:
            return Plan(strategy, degrees, one.micro_batches)
        cuts = tuple(f"layer {number}" for number in np.cumsum(one.layers)[:-1])
        return Plan(strategy, degrees, model_parallel=(Pipeline(_ORDER, one.micro_batches, cuts),))

    @cached_property
    def topology(self) -> Topology:
        """A node a rank.

        A message is a small one with the shape, then a quarter of the result from each GPU; the four of the receiving
        node gather the quarters.
        """
        between, inside = self.links["between"], self.links["inside"]
        around = ring_of(between)

        @cache
        def cost(collective: Collective, flows: float = 1.0) -> CollectiveEstimate:
            if collective.kind != "send_recv":
                return around(collective)
            part = collective.bytes / self.trained.tensor
            found = float(between.at(1) + between.at(part) + (self.trained.tensor - 1) * inside.at(part))
            return CollectiveEstimate(found, found, found, "the authors' fits")

        ranks, rate = self.trained.replicas * self.trained.stages, float(np.max(between.bytes / between.latency_s))
        return HalfDuplex("clariden", ranks, "nccl", cost, rate, ranks, cost, rate)

    def lowered(self, host: float = 1.0, gpu: float = 1.0) -> Lowered:
        return lower(TableSource(self.rows(host, gpu)), self.plan, self.topology, self.trained.global_batch)

    def step_s(self, host: float = 1.0, gpu: float = 1.0) -> float:
        """Replay one step."""
        return replay(self.lowered(host, gpu).graph, self.topology).step_s

    def held_bytes(self) -> float:
        """Return the bytes of tensors of the rank that holds most.

        The driver counts blocks that the allocator keeps. So gradients count in full, also where there is one
        micro-batch, and the first of them come while results go.
        """
        one, stages = self.trained, self.lowered().stages
        plan = replace(self.plan, gradient_accumulation_steps=max(2, self.plan.gradient_accumulation_steps))
        found = []
        for number, stage in enumerate(stages):
            size = sum(gradient.bytes for gradient in stage.rank.gradients)
            memory = Memory(StepMemory(size, size, 2 * size, 0, 0, 0, 0), stage.rank)
            alive = SCHEDULES[_ORDER]().live_micro_batches(number, one.stages, one.micro_batches)
            held = memory.parts(plan, 1 if one.stages == 1 else one.micro_batches, alive).peak_bytes
            # DeepSpeed copies gradients into its bucket on a single replica too.
            found.append(held + (size if one.replicas == 1 else 0))
        return float(max(found))
