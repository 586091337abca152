"""WorkJudge: plans for ranks whose work is known, as a prediction tells it, on a topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cdmpp.collectives.topology import Topology
from cdmpp.network.training_step import PHASES
from cdmpp.plans.judge import Choices, Worth
from cdmpp.plans.memory import Memory
from cdmpp.plans.plan import Plan
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.strategy_replay import replay_strategy
from cdmpp.steps.transforms.accumulate import accumulate
from cdmpp.steps.transforms.fuse_update import can_fuse_update, fuse_update
from cdmpp.steps.transforms.keep_gathered import keep_gathered
from cdmpp.steps.transforms.recompute import can_recompute, recompute
from cdmpp.steps.transforms.scale import replicate, shard_update

_ON_PATH: Mapping[str, str] = {
    "gap": "host",
    "start": "host",
    "update": "update",
    **dict.fromkeys(PHASES[:2], "compute"),
}
"""Kind of span -> cause; all others are communication."""


@dataclass(frozen=True)
class WorkJudge:
    """Replays of changed work."""

    graph: StepGraph
    """What each rank computes."""
    topology: Topology
    default: Plan = Plan()
    memory: Memory | None = None
    """Of a rank; None: no limit can be kept."""
    _replayed: dict[Plan, Worth] = field(default_factory=dict, compare=False, repr=False)

    @property
    def choices(self) -> Choices:
        """What may be set."""
        first, scheme = self.graph.ranks[0], self.default.scheme
        units = tuple(module.name for module in can_recompute(first))
        view = "memory" if scheme == "ddp" and self.memory is not None else ""
        fuse = can_fuse_update(self.graph)
        return Choices(len(self.graph.ranks), first.gradient_bytes, units, view, fuse, scheme != "fsdp")

    @property
    def assumed(self) -> tuple[str, ...]:
        """What holds for all plans."""
        told = ["a plan is judged by replay of predicted kernels: no step under it was run"]
        if self.memory is not None:
            told.append("memory is an estimate: the buffers of the back end and of the allocator are not told")
        return tuple(told)

    def worth(self, plan: Plan) -> Worth:
        """Seconds, memory, and the longest chain; each plan is replayed once."""
        if plan not in self._replayed:
            graph, topology = _stand_in(changed(self.graph, plan), self.topology, plan)
            made = replay_strategy(graph, plan.on(not self._stands_still(plan)), topology)
            path_s: dict[str, float] = {}
            for kind, seconds in made.critical_s.items():
                cause = _ON_PATH.get(kind, "communication")
                path_s[cause] = path_s.get(cause, 0.0) + seconds
            self._replayed[plan] = Worth(made.iteration_s, self.peak_bytes(plan), path_s, plan.micro_steps)
        return self._replayed[plan]

    def peak_bytes(self, plan: Plan) -> int | None:
        """Of the rank that holds most."""
        return None if self.memory is None else self.memory.peak_bytes(plan, len(self.graph.ranks))

    def _stands_still(self, plan: Plan) -> bool:
        """As ``scheme_of`` has it: on gloo nothing computes while fsdp exchanges."""
        return plan.scheme == "fsdp" and self.topology.backend == "gloo"


def changed(graph: StepGraph, plan: Plan) -> StepGraph:
    """The step under a plan."""
    graph = recompute(graph, plan.recomputed)
    if plan.fused_update:
        graph = fuse_update(graph)
    if not plan.reshard:
        graph = keep_gathered(graph)
    return accumulate(graph, plan.micro_steps)


def _stand_in(graph: StepGraph, topology: Topology, plan: Plan) -> tuple[StepGraph, Topology]:
    """Two ranks for many equal ones, whose collectives take what those of all take: as long, and sooner replayed."""
    ranks, first = len(graph.ranks), graph.ranks[0]
    if ranks < 3 or plan.scheme == "ps" or any(replace(rank, rank=0) != first for rank in graph.ranks[1:]):
        return graph, topology
    shards = plan.on().shards(ranks)
    (cut,) = shard_update(StepGraph((first,)), shards).ranks
    few = replace(
        topology, ranks=2, nodes=1, adapters=1,
        whole=lambda collective: topology.whole(replace(collective, ranks=ranks)),
    )  # fmt: skip
    return replicate(StepGraph((replace(cut, update_shards=2 if shards > 1 else 1),)), 2), few
