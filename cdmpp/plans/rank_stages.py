"""RankStages: the work of a rank on one device, as a plan changes it, cut into stages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from cdmpp.plans.changed import one_batch
from cdmpp.plans.cut import stages_of
from cdmpp.plans.divided_backward import DividedBackward
from cdmpp.plans.merged_stage import StageOps, merged_stage, operators_of
from cdmpp.plans.plan import Plan
from cdmpp.plans.scheduled import StageParts
from cdmpp.plans.sources.source import OpExchange, RankWork
from cdmpp.plans.stages import Stage
from cdmpp.plans.strategies.pipeline import Pipeline, SendCost
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.step_graph import StepGraph


@dataclass(frozen=True)
class RankStages:
    """Its parts are worked out when they are first asked for."""

    work: RankWork
    plan: Plan
    pipeline: Pipeline | None
    count: int
    """Stages of the pipeline; 1 without one."""
    send_s: SendCost
    """It gives the seconds of messages between the first two stages."""
    divides_backward: bool
    merge: bool

    @cached_property
    def one_batch(self) -> StepGraph:
        """The whole rank with its exchanges of operators, as the plan changes it."""
        exchanges = tuple(
            Exchange(one.kind, one.bytes, {0: one.after}, {0: one.before}, one.name, server=number)
            for number, one in enumerate(self.work.exchanges)
        )
        return one_batch(StepGraph((replace(self.work.rank, rank=0),), exchanges), self.plan)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Return the work of a rank of each stage for one micro-batch."""
        (rank,) = self.one_batch.ranks
        if self.pipeline is None:
            return stages_of(rank, ())
        return self.pipeline.stages(rank, self.count, self.send_s)

    @cached_property
    def parts(self) -> tuple[StageParts, ...]:
        """Ops of each stage for one micro-batch."""
        found = []
        for stage in self.stages:
            whole = self._merged(StageOps(stage.rank, operators_of(self.operators, stage.places)))
            own = None
            if self.divides_backward:
                divided = DividedBackward(stage)
                own = self._merged(StageOps(divided.rank, (), divided.first_weights))
            found.append(StageParts(*whole, own))
        return tuple(found)

    def _merged(self, given: StageOps) -> tuple[StageOps, StageOps]:
        """Ops of every micro-batch but the last, and of the last one."""
        if not self.merge:
            return given, given
        return merged_stage(given, with_gradients=False), merged_stage(given, with_gradients=True)

    @cached_property
    def operators(self) -> tuple[OpExchange, ...]:
        """Exchanges of one micro-batch at the places of the changed rank; those of what runs again come again."""
        ops, found = self.one_batch.ranks[0].ops, list[OpExchange]()
        again = {
            op.forward: place
            for place, op in enumerate(ops)
            if op.phase == "backward" and op.forward is not None and op.name == ops[op.forward].name
        }
        for one in self.one_batch.exchanges:
            own = replace(self.work.exchanges[one.server], after=one.after[0], before=one.before[0])
            found.append(own)
            if repeated := tuple(again[place] for place in own.before if place in again):
                begin = min(repeated) - 1
                made = again.get(own.after, begin)  # a consumer that runs again first reads what was saved
                found.append(replace(own, after=min(made, begin), before=repeated))
        return tuple(sorted(found, key=lambda one: one.after))
