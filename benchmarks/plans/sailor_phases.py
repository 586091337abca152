"""Runs of another runtime on Sailor's cluster, phase by phase, beside the terms that a prediction is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from benchmarks.plans.sailor_data import ITEM_BYTES, Measured, Phases, Trained
from benchmarks.plans.sailor_job import Job
from benchmarks.plans.scores import least_absolute
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.curve import Curve
from cdmpp.plans.lower import lower
from cdmpp.plans.sources.table import TableSource
from cdmpp.steps.from_layers import Layer
from cdmpp.steps.replay import replay

_GPUS = 4


@dataclass(frozen=True)
class OtherRun:
    """One run, and the same plan as a job of ours."""

    phases: Phases
    profiles: Mapping[int, tuple[Measured, ...]]
    links: Mapping[str, Curve]

    @cached_property
    def job(self) -> Job:
        """Stages of one layer each: the runtime cuts inside of blocks."""
        one, nan = self.phases, float("nan")
        layers = (1,) * one.stages
        trained = Trained(
            "clariden", "OPT-350", "", one.nodes, one.replicas, one.stages, _GPUS, one.micro_batch, one.global_batch,
            layers, one.iteration_s, nan, nan, nan,
        )  # fmt: skip
        return Job(trained, self.profiles, self.links)

    @cached_property
    def passes_s(self) -> float:
        """Measured seconds of both passes of one micro-batch on all stages."""
        return sum(sum(self.stage_s(stage)) for stage in range(self.phases.stages))

    def stage_s(self, stage: int) -> tuple[float, float]:
        """Measured seconds of one forward and one backward pass."""
        forward, backward = (self.phases.seconds[f"{name}_compute"][stage] for name in ("forward", "backward"))
        return forward / self.phases.micro_batches, backward / self.phases.micro_batches

    @cached_property
    def parts_s(self) -> np.ndarray:
        """(2,) predicted seconds of the same: of waiting for the host, and others."""

        def whole_s(*factors: float) -> float:
            own = [row for row in self.job.rows(*factors) if row.examples == self.phases.micro_batch]
            return sum(row.forward_s + row.backward_s for row in own)

        return np.array([whole_s(1.0, 0.0), whole_s(0.0, 1.0)])

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.profiles[self.phases.micro_batch])

    @property
    def all_reduce_s(self) -> float:
        """Seconds of the all-reduce of all gradients; 0 where stages share them, or there is one replica."""
        replicas = self.phases.replicas
        if self.phases.stages > 1 or replicas == 1:
            return 0.0
        return self._cost_s("all_reduce", ITEM_BYTES * self.parameters, replicas)

    @property
    def update_s(self) -> float:
        return self.job.update_s * self.parameters if self.phases.stages == 1 else 0.0

    @property
    def sent_bytes(self) -> int:
        return ITEM_BYTES * self.profiles[self.phases.micro_batch][0].output * self.phases.micro_batch

    @property
    def message_s(self) -> float:
        return self._cost_s("send_recv", self.sent_bytes, 2) if self.phases.stages > 1 else 0.0

    @property
    def first_send_s(self) -> float:
        """Measured: the first stage sends as many as there are stages behind it before it waits for anything."""
        return self.phases.seconds["forward_send"][0] / max(self.phases.stages - 1, 1)

    @property
    def step_s(self) -> float:
        """Measured, without all-reduces and the update."""
        seconds = self.phases.seconds
        return self.phases.iteration_s - sum(
            seconds[name][0] for name in ("backward_params_all_reduce", "backward_embedding_all_reduce", "optimizer")
        )

    @cached_property
    def replayed_s(self) -> float:
        """A replay of the measured passes, with the bubble and the messages as predicted."""
        rows = [
            Layer(f"layer {stage}", *self.stage_s(stage), 1, self.sent_bytes, examples=self.phases.micro_batch)
            for stage in range(self.phases.stages)
        ]
        alone = replace(self.job.plan.degrees, dp_replicate=1)
        plan = replace(self.job.plan, degrees=alone)
        topology = replace(self.job, trained=replace(self.job.trained, replicas=1)).topology
        batch = self.phases.global_batch // self.phases.replicas
        return replay(lower(TableSource(rows), plan, topology, batch).graph, topology).step_s

    @property
    def missing_s(self) -> float:
        """Measured seconds of each slot that the replay lacks."""
        return (self.step_s - self.replayed_s) / (self.phases.micro_batches + self.phases.stages - 1)

    def _cost_s(self, kind: str, n_bytes: int, ranks: int) -> float:
        return self.job.topology.near(Collective(kind, n_bytes, ranks, "nccl")).latency_s


def factors_of(runs: Sequence[OtherRun]) -> tuple[float, float]:
    """Fit the two factors of passes to these runs, whose steps play no part."""
    parts, measured = np.array([run.parts_s for run in runs]), np.array([run.passes_s for run in runs])
    host, gpu = least_absolute(parts, np.zeros(len(runs)), measured)
    return float(host), float(gpu)
