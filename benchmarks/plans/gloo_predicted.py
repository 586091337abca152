"""Plans that ran here, predicted: what ``benchmarks.plans.gloo`` judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.distributed_jobs.plans import is_base
from benchmarks.distributed_jobs.scenario import Scenario
from cdmpp.collectives.topology import Topology
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import lower
from cdmpp.plans.plan import Plan
from cdmpp.plans.sources.table import TableSource
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.from_layers import Layer
from cdmpp.steps.probed_topology import probed_topology
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import Measured, RankGraph, StepGraph
from cdmpp.steps.transforms.copies import Copies, with_copies

NO_COPIES = Copies(0.0, 0.0)


@dataclass(frozen=True)
class Figure:
    """One plan of one network on one set of links."""

    scenario: Scenario
    visits_s: tuple[float, ...]
    """Median step of each visit."""
    measured_s: float
    """The median of these."""
    predicted_s: float
    no_overlap_s: float
    full_overlap_s: float


def plan_of(scenario: Scenario) -> Plan:
    """Return the plan under which a job ran."""
    replicas = DDP(bucket_bytes=(int(2**20 * scenario.bucket_mb),))
    if scenario.scheme == "ddp":
        return Plan(replicas, ParallelDegrees(dp_replicate=scenario.ranks), scenario.micro_batches)
    if scenario.scheme == "fsdp":
        degrees = ParallelDegrees(dp_replicate=scenario.replicas, dp_shard=scenario.ranks // scenario.replicas)
        return Plan(STRATEGIES["fsdp" if scenario.replicas == 1 else "hsdp"](), degrees)
    degrees = ParallelDegrees(pp=scenario.ranks // scenario.replicas, dp_replicate=scenario.replicas)
    pipeline = Pipeline("1f1b", scenario.micro_batches, tuple(map(str, scenario.cuts)))
    return Plan(replicas, degrees, model_parallel=(pipeline,))


def examples(scenario: Scenario) -> int:
    """Count the examples of one step of all ranks."""
    replicas = scenario.replicas if scenario.scheme == "pipeline" else scenario.ranks
    return scenario.batch * scenario.micro_batches * replicas


def topology_of(scenario: Scenario, links: Mapping[str, Mapping[str, Any]]) -> tuple[Topology, float]:
    """Return the links of a job as they were timed, and the share of a processor that exchanges take there.

    Pairs of 4 ranks exchange at the same time under HSDP. Replicas of the stages of a pipeline take turns, since the
    stage in front waits for the last gradient: theirs take as long as those of 2 ranks alone.
    """
    own = links[f"{scenario.ranks} of {scenario.ranks} ranks, {scenario.mbit} Mbit"]
    ranks, groups = tuple(RankGraph(rank, ()) for rank in range(scenario.ranks)), dict[int, Any]()
    if scenario.ranks > 2:
        among = 2 if scenario.scheme == "pipeline" else scenario.ranks
        for kind, size, seconds in _curves(links[f"2 of {among} ranks, {scenario.mbit} Mbit"]):
            if kind != "send_recv":  # of all ranks they were timed in pairs, all at once
                groups.setdefault(2, {}).setdefault(kind, []).append((size, seconds))
    graph = StepGraph(ranks, backend=own["backend"], measured=Measured(probed=tuple(_curves(own))))
    return probed_topology(graph, groups), own["processor_share"]


def _curves(probe: Mapping[str, Any]) -> list[tuple[str, int, float]]:
    return [(one["kind"], one["bytes"], one["latency_s"]) for one in probe["rows"]]


@dataclass(frozen=True)
class Known:
    """What is known of a network before its plans are predicted."""

    layers: tuple[Layer, ...]
    copies: Copies

    def scaled(self, layers: float = 1.0, copies: float = 1.0) -> Known:
        """Return times so many times as long."""
        own = [
            replace(one, forward_s=layers * one.forward_s, backward_s=layers * one.backward_s) for one in self.layers
        ]
        both = (copies * one for one in (self.copies.gathered_s, self.copies.scattered_s))
        return Known(tuple(own), Copies(*both))


def predicted(scenario: Scenario, known: Known, kept: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return seconds of a step by replay, without overlap and with full overlap.

    Ranks that share a core compute for as many times as long as two processes there were timed to do.
    """
    is_packed = len(set(scenario.pins)) < scenario.ranks
    if is_packed:
        known = known.scaled(*2 * (kept["packed"][scenario.network],))
    source = TableSource(known.layers, state_bytes=1.0)
    topology, share = topology_of(scenario, kept["links"])
    graph = lower(source, plan_of(scenario), topology, examples(scenario), fold=False).graph
    if scenario.scheme == "fsdp":
        graph = with_copies(graph, known.copies)
    cores = tuple(f"core {core}" for core in scenario.pins) if is_packed else ()
    graph = replace(graph, processor_share=share, is_contention_free=True, processors=cores)
    own = cores or tuple(map(str, range(scenario.ranks)))
    busy_s = [sum(r.busy_s for r, other in zip(graph.ranks, own, strict=True) if other == core) for core in own]
    wire_s = [0.0] * scenario.ranks
    for one in graph.exchanges:
        seconds = topology.cost(one.collective(topology.backend), one.participants).latency_s
        for rank in one.ranks:
            wire_s[rank] += seconds
    both = list(zip(busy_s, wire_s, strict=True))
    return replay(graph, topology).step_s, max(map(sum, both)), max(map(max, both))


def known_networks(kept: Mapping[str, Any], by: str) -> dict[str, Known]:
    """Network -> what layers or traces tell.

    What the profiler adds to copies is taken off: they get the factor under which the traced FSDP job, predicted, takes
    as long as its steps without the profiler did.
    """
    if by == "layers":
        return {
            network: Known(tuple(Layer(**row) for row in rows), NO_COPIES) for network, rows in kept["layers"].items()
        }
    found = {}
    for network, rows in kept["traced"].items():
        own = Known(tuple(Layer(**row) for row in rows), Copies(**kept["copies"][network]))
        bases = {base.scheme: job for job in kept["jobs"] if is_base(base := scenario_of(job), network)}
        found[network] = _fitted(own, bases["fsdp"], kept)
    return found


def _fitted(known: Known, base: Mapping[str, Any], kept: Mapping[str, Any]) -> Known:
    """Give copies the factor, from 0 to 2, with which the steps of a traced job are nearest to the measured ones."""
    low, high, measured_s = 0.0, 2.0, float(np.median(base["visits_s"]))
    for _ in range(12):
        middle = (low + high) / 2
        is_less = predicted(scenario_of(base), known.scaled(copies=middle), kept)[0] < measured_s
        low, high = (middle, high) if is_less else (low, middle)
    return known.scaled(copies=(low + high) / 2)


def scenario_of(job: Mapping[str, Any]) -> Scenario:
    """A kept job ran this."""
    return Scenario(**{**job["scenario"], "cuts": tuple(job["scenario"].get("cuts", ()))})


def figures(kept: Mapping[str, Any], by: str) -> list[Figure]:
    """Predict the jobs of one run ``by`` layers or traces; those that were traced are not among the latter.

    Jobs without a calm visit are left out.
    """
    found, own = list[Figure](), known_networks(kept, by)
    for job in kept["jobs"]:
        scenario = scenario_of(job)
        if not job["visits_s"] or (by == "trace" and is_base(scenario, scenario.network)):
            continue
        measured_s = float(np.median(job["visits_s"]))
        three = predicted(scenario, own[scenario.network], kept)
        found.append(Figure(scenario, tuple(job["visits_s"]), measured_s, *three))
    return found
