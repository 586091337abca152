"""Measured plans of decoders under Megatron and nanotron, asked of the product as ``cdmpp plan --framework`` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.plans.framework_factors import Factors
from cdmpp import devices
from cdmpp.collectives.topology import Topology, topology_of
from cdmpp.plans.calibration import at_bandwidth
from cdmpp.plans.candidates import DEGREES, VALID, Candidates
from cdmpp.plans.closed_form import ClosedForm
from cdmpp.plans.framework_rules import by_rules, schedules_of
from cdmpp.plans.frameworks import Framework
from cdmpp.plans.judge import Judge
from cdmpp.plans.op_seconds import SPLIT
from cdmpp.plans.sources.framework_source import hosted, kernels_of
from cdmpp.plans.sources.hosted import HostedSource
from cdmpp.plans.sources.source import StepSource
from cdmpp.plans.transformer_shape import TransformerShape

Floats = NDArray[np.float64]
_NODE = 8
PARTS = ("compute", "bubble", "update", "exchanges of tensor ranks", "other exchanges")
"""Of a step; exchanges are those that nothing hides, and what a step takes once is of its update."""


@dataclass(frozen=True)
class PlanRow:
    """One measured step of one plan."""

    shape: TransformerShape
    gpus: int
    micro_batch: int
    micro_batches: int
    tensor: int
    data: int
    pipeline: int
    step_s: float
    zero: int = 0
    """1: replicas divide the states of the optimizer."""

    @property
    def combination(self) -> str:
        """Return the words of the plan's strategies."""
        replicas = ("zero1" if self.zero else "data",) if self.data > 1 or self.gpus == 1 else ()
        return "+".join([*replicas, *["tp"] * (self.tensor > 1), *["pp"] * (self.pipeline > 1)])


R = TypeVar("R", bound=PlanRow)


@dataclass(frozen=True)
class Cluster:
    """A framework on one kind of machine, and all decoders that were read for it."""

    framework: Framework
    device: str
    name: str
    recomputes: bool = False
    known: dict[Factors, dict[PlanRow, tuple[float, ...]]] = field(default_factory=dict, compare=False, repr=False)
    """Predicted seconds of rows under some factors, one for each of ``PARTS``."""
    _sources: dict[TransformerShape, HostedSource] = field(default_factory=dict, compare=False, repr=False)
    _judges: dict[TransformerShape, Judge] = field(default_factory=dict, compare=False, repr=False)
    _links: dict[int, Topology] = field(default_factory=dict, compare=False, repr=False)

    def links(self, gpus: int) -> Topology:
        """Return the links of a job."""
        gpus = max(gpus, _NODE)
        if gpus not in self._links:
            self._links[gpus] = topology_of(gpus, self.device, self.name, can_grow=True)
        return self._links[gpus]

    def source(self, shape: TransformerShape) -> HostedSource:
        """Return the source of a decoder; each is read once."""
        if shape not in self._sources:
            kernels = kernels_of(shape, self.framework, devices.get(self.device))
            self._sources[shape] = hosted(kernels, self.framework, devices.get(self.device), self.links)
        return self._sources[shape]

    def of(self, factors: Factors) -> Asked:
        """Return the same with a host and links as measured jobs found them."""
        return Asked(self, factors)

    def judge(self, shape: TransformerShape) -> Judge:
        """Return what judges the plans of a decoder, with all that does not depend on times."""
        if shape not in self._judges:
            self._judges[shape] = Judge(self.source(shape))
        return self._judges[shape]


@dataclass(frozen=True)
class Asked:
    """Kernels, links and host under some factors."""

    cluster: Cluster
    factors: Factors
    _links: dict[int, Topology] = field(default_factory=dict, compare=False, repr=False)

    def links(self, gpus: int) -> Topology:
        """Return the links at the bandwidth that they reach."""
        gpus = max(gpus, _NODE)
        if gpus not in self._links:
            one = self.factors
            self._links[gpus] = at_bandwidth(self.cluster.links(gpus), one.inside, one.between)
        return self._links[gpus]

    def messages(self, gpus: int) -> Topology:
        """Return the same with what the host takes for messages."""
        return self.factors.host.topology(self.links(gpus))

    def source(self, shape: TransformerShape) -> StepSource:
        """Return what a rank computes."""
        return self.cluster.source(shape).under(self.factors.host, self.links, self.factors.compute)

    def costs(self, rows: Sequence[PlanRow]) -> list[tuple[NDArray[np.int64], ClosedForm]]:
        """Return the costs of plans, those of one decoder on as many GPUs together, with their places among all."""
        groups, found = dict[tuple[TransformerShape, int], list[int]](), list[tuple[NDArray[np.int64], ClosedForm]]()
        for place, row in enumerate(rows):
            groups.setdefault((row.shape, row.gpus), []).append(place)
        judges = dict[TransformerShape, Judge]()
        for (shape, gpus), places in groups.items():
            if shape not in judges:
                known = self.cluster.judge(shape)
                judges[shape] = known.timed_by(self.source(shape))
            plans = self._plans([rows[one] for one in places], gpus)
            costs = judges[shape].closed_form(plans, self.messages(gpus))
            if costs.errors:
                raise RuntimeError(next(iter(costs.errors.values())))
            found.append((np.array(places), costs))
            for key, one in judges[shape]._works.items():  # what is read once serves other factors
                self.cluster.judge(shape)._works.setdefault(key, one)
        return found

    def _plans(self, rows: Sequence[PlanRow], gpus: int) -> Candidates:
        names = list(dict.fromkeys(one.combination for one in rows))
        degrees = np.ones((len(rows), len(DEGREES)), np.int64)
        for number, one in enumerate(rows):
            for name, value in (("dp_replicate", one.data), ("tp", one.tensor), ("pp", one.pipeline)):
                degrees[number, DEGREES.index(name)] = value
        columns = [[names.index(one.combination), one.micro_batch, one.micro_batches] for one in rows]
        combination, micro, many = np.array(columns, np.int64).T
        none = np.zeros(len(rows), np.int64)
        batch = rows[0].micro_batch * rows[0].micro_batches * rows[0].data
        rules = by_rules(names, self.cluster.framework)
        return Candidates(
            rules, gpus, batch, {}, schedules_of(), combination, degrees, micro, many, none,
            none + self.cluster.recomputes, none + VALID,
        )  # fmt: skip


@dataclass(frozen=True)
class MeasuredPlans(Generic[R]):
    """Measured plans on one cluster."""

    rows: tuple[R, ...]
    cluster: Cluster

    def where(self, seen: Sequence[bool] | NDArray[np.bool_]) -> Self:
        """Keep some."""
        return replace(self, rows=tuple(self.rows[one] for one in np.flatnonzero(seen)))

    @cached_property
    def measured_s(self) -> Floats:
        """The measured seconds."""
        return np.array([row.step_s for row in self.rows])

    def seconds(self, factors: Factors) -> Floats:
        """Return the predicted seconds."""
        return np.sum([*self.parts(factors).values()], axis=0)

    def parts(self, factors: Factors) -> Mapping[str, Floats]:
        """Return what the predicted seconds are spent on, each of ``PARTS``; they add up to the step.

        Those of each row under the same factors are worked out once.
        """
        known = self.cluster.known.setdefault(factors, {})
        if new := [row for row in self.rows if row not in known]:
            for places, costs in self.cluster.of(factors).costs(new):
                known.update(
                    (new[place], tuple(own)) for place, own in zip(places, _parts(costs).tolist(), strict=True)
                )
        return dict(zip(PARTS, np.array([known[row] for row in self.rows]).T, strict=True))


def _parts(costs: ClosedForm) -> Floats:
    """(plans, ``PARTS``)."""
    tensor_s = costs.communication_s[SPLIT]
    others_s = costs.exposed_s - tensor_s
    return np.stack([costs.compute_s, costs.bubble_s, costs.update_s + costs.once_s, tensor_s, others_s], axis=1)
