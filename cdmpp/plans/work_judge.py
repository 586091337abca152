"""WorkJudge: plans for ranks whose work is known, as a prediction tells it, on a fabric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cdmpp.collectives.fabric import Fabric
from cdmpp.plans.changed_work import (
    can_fuse_update,
    can_recompute,
    kept_gathered,
    with_fused_update,
    with_micro_steps,
    with_recomputed,
)
from cdmpp.plans.judge import Choices, Worth
from cdmpp.plans.memory import Memory
from cdmpp.plans.plan import Plan
from cdmpp.steps.replay import replay
from cdmpp.steps.work import PHASES, RankWork

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

    works: tuple[RankWork, ...]
    """Of each rank, from rank 0 on."""
    fabric: Fabric
    default: Plan = Plan()
    memory: Memory | None = None
    """Of a rank; None: no limit can be kept."""
    _replayed: dict[Plan, Worth] = field(default_factory=dict, compare=False, repr=False)

    @property
    def choices(self) -> Choices:
        """What may be set."""
        first, scheme = self.works[0], self.default.scheme
        units = tuple(unit.name for unit in can_recompute(first))
        view = "memory" if scheme == "ddp" and self.memory is not None else ""
        fuse = all(map(can_fuse_update, self.works))
        return Choices(len(self.works), first.gradient_bytes, units, view, fuse, scheme != "fsdp")

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
            works, fabric = _stand_in([changed(work, plan) for work in self.works], self.fabric, plan)
            made = replay(works, plan.on(not self._stands_still(plan)), fabric)
            path_s: dict[str, float] = {}
            for kind, seconds in made.critical_s.items():
                cause = _ON_PATH.get(kind, "communication")
                path_s[cause] = path_s.get(cause, 0.0) + seconds
            self._replayed[plan] = Worth(made.iteration_s, self.peak_bytes(plan), path_s, plan.micro_steps)
        return self._replayed[plan]

    def peak_bytes(self, plan: Plan) -> int | None:
        """Of the rank that holds most."""
        return None if self.memory is None else self.memory.peak_bytes(plan, len(self.works))

    def _stands_still(self, plan: Plan) -> bool:
        """As ``scheme_of`` has it: on gloo nothing computes while fsdp exchanges."""
        return plan.scheme == "fsdp" and self.fabric.backend == "gloo"


def changed(work: RankWork, plan: Plan) -> RankWork:
    """The work of a rank under a plan."""
    made = with_recomputed(work, plan.recomputed)
    if plan.fused_update:
        made = with_fused_update(made)
    if not plan.reshard:
        made = kept_gathered(made)
    return with_micro_steps(made, plan.micro_steps)


def _stand_in(works: Sequence[RankWork], fabric: Fabric, plan: Plan) -> tuple[Sequence[RankWork], Fabric]:
    """Two ranks for many equal ones, whose collectives take what those of all take: as long, and sooner replayed."""
    ranks = len(works)
    if ranks < 3 or plan.scheme == "ps" or any(replace(work, rank=0) != works[0] for work in works[1:]):
        return works, fabric
    shards = plan.on().shards(ranks)
    cut = replace(works[0].cut_over(shards), update_shards=2 if shards > 1 else 1)
    few = replace(
        fabric, ranks=2, nodes=1, adapters=1,
        whole=lambda collective: fabric.whole(replace(collective, ranks=ranks)),
    )  # fmt: skip
    return [replace(cut, rank=rank) for rank in range(2)], few
