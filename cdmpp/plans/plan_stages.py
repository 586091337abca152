"""PlanStages: what every stage of several plans takes and holds, as arrays with a row a plan and a column a stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from cdmpp.plans.candidates import Candidates
from cdmpp.plans.combinations import Combination
from cdmpp.plans.overlap import Floats
from cdmpp.plans.replica_costs import ReplicaCosts, Replicas
from cdmpp.plans.stage_costs import GRADIENTS, HALOS, PARAMETERS, SPLIT, StageCosts
from cdmpp.plans.stage_memory import StageMemory, memory_of
from cdmpp.steps.schedule import Schedule
from cdmpp.steps.strategy import IntArray


@dataclass(frozen=True)
class PlanStages:
    """All plans have as many stages, on ranks alike. Seconds of passes are those of one micro-batch."""

    order: Schedule
    """It places stages on ranks as those of all plans do."""
    rows: IntArray
    """Place of each plan among all candidates."""
    forward_s: Floats
    backward_s: Floats
    """Both with the exchanges of divided operators and the messages that a stage waits for."""
    inputs_s: Floats
    weights_s: Floats
    """The two parts of a backward pass that a schedule divides; 0 where none can."""
    sent_s: Floats
    returned_s: Floats
    """Messages of the forward and of the backward pass to each stage."""
    halos_s: Floats
    split_s: Floats
    """Exchanges of divided operators among them: edges of images, and others."""
    start_up_s: Floats
    """The part of messages and exchanges that does not depend on sizes, but for halos."""
    update_s: Floats
    exposed_s: Floats
    """What replicas exchange delays the end of the step by so much."""
    ending_s: Floats
    """Replicas exchange for so long as a stage ends, where its rank waits for that before it goes on."""
    tied_s: Floats
    """Sums over stages that hold the same parameter, where ranks have several stages."""
    ahead_s: Floats
    """A stage ends its last backward pass so long before the first one does."""
    once_s: Floats
    """Seconds that a step takes once; a number a plan, as all that follow."""
    kernels_low: Floats
    kernels_high: Floats
    exchanges_low: Floats
    exchanges_high: Floats
    """Factors from the time of kernels and exchanges to the ends of their intervals of 80 %."""
    gradients_s: Floats
    parameters_s: Floats
    """Seconds that replicas exchange on the stage that does so longest, hidden or not."""
    start_up_share: Floats
    """Share of what replicas exchange that does not depend on sizes."""
    memory: StageMemory | None
    """None: unknown."""

    @property
    def count(self) -> int:
        """Return the number of stages."""
        return int(self.forward_s.shape[1])

    @property
    def received_s(self) -> Floats:
        """Return the seconds of the messages of both passes to each stage."""
        return self.sent_s + self.returned_s

    def taken(self, rows: IntArray) -> PlanStages:
        """Keep some plans, by their places here."""
        names = [one.name for one in fields(self) if one.name not in ("memory", "order")]
        memory = None if self.memory is None else self.memory.taken(rows)
        return replace(self, memory=memory, **{name: getattr(self, name)[rows] for name in names})

    @classmethod
    def joined(cls, each: Sequence[PlanStages]) -> PlanStages:
        """Join plans; all know their memory, or none."""
        names = [one.name for one in fields(cls) if one.name not in ("memory", "order")]
        known = [one.memory for one in each if one.memory is not None]
        arrays = {name: np.concatenate([getattr(one, name) for one in each]) for name in names}
        return cls(order=each[0].order, **arrays, memory=StageMemory.joined(known) if known else None)


def of_plans(costs: StageCosts, combination: Combination, plans: Candidates, rows: IntArray) -> PlanStages:
    """Work out plans of one combination that divide the model alike.

    Args:
        costs: of the stages at all sizes of their micro-batches.
        combination: strategies of the plans.
        plans: all candidates.
        rows: the plans among them.

    Raises:
        CdmppError: replicas that cannot share such a step.
    """
    strategy, is_piped = combination.strategy.on_backend(costs.topology.backend), costs.structure.count > 1
    strategy = strategy.in_pipeline() if is_piped else strategy
    which = np.searchsorted([one.batch for one in costs.works], plans.micro_batch[rows])
    many, replicas = plans.micro_batches[rows], plans.replicas[rows]
    _, firsts, degree = np.unique(replicas, axis=0, return_index=True, return_inverse=True)
    degree = degree.ravel()
    those = Replicas(costs, strategy, [plans.degrees_of(int(rows[one])) for one in firsts], combination.replicating)
    found = those.of()
    is_chained = is_piped and strategy.ends_backward and not costs.order.is_looped
    exposed_s = _chained_s(found.exposed_s[degree, which], is_chained)
    part_s = {part: seconds.max(axis=1)[degree] for part, seconds in found.part_s.items()}
    if not is_piped and many.max() > 1 and strategy.exchanges_each_batch:
        more = [those.of(batches) for batches in (2, 3)]
        exposed_s = _of_batches(many[:, np.newaxis], exposed_s, *(one.exposed_s[degree, which] for one in more))
        part_s = {
            part: _of_batches(many, seconds, *(one.part_s[part].max(axis=1)[degree] for one in more))
            for part, seconds in part_s.items()
        }
    backward_s = costs.pass_s["backward"][which]
    ahead_s = np.cumsum(backward_s, axis=1) - backward_s
    ending_s, tied_s = np.zeros_like(backward_s), np.zeros_like(backward_s)
    if costs.order.is_looped:  # its lists know when each stage ends
        ending_s = np.minimum(exposed_s, found.part_s[GRADIENTS][degree])
        ending_s[:, 0] = exposed_s[:, 0]  # what it gathers delays all that follows
        for holders, sum_s in found.tied:
            tied_s[:, holders] += sum_s[degree][:, np.newaxis]
    else:
        _wait_for_tied(found, degree, exposed_s, ahead_s)
    times, nothing = [one.times for one in costs.works], np.zeros((len(costs.works), costs.structure.count))
    parts_s = costs.divided_s if costs.order.divides_backward else (nothing, nothing)
    sent_s = sum(seconds.sum(axis=1) for seconds in found.part_s.values())
    return PlanStages(
        costs.order,
        rows,
        costs.pass_s["forward"][which],
        backward_s,
        parts_s[0][which],
        parts_s[1][which],
        costs.received_s["forward"][which],
        costs.received_s["backward"][which],
        costs.split_passes_s.get(HALOS, nothing)[which],
        costs.split_passes_s.get(SPLIT, nothing)[which],
        (costs.split_start_up_s + costs.received_start_up_s)[which],
        costs.update_s[which] / found.shards[degree][:, np.newaxis] + found.summed_s[degree],
        exposed_s,
        ending_s,
        tied_s,
        ahead_s,
        costs.once_s[which] * (1 if is_piped else many),
        np.array([one.low for one in times])[which],
        np.array([one.high for one in times])[which],
        found.low[degree],
        found.high[degree],
        part_s[GRADIENTS],
        part_s[PARAMETERS],
        (found.start_up_s.sum(axis=1) / np.where(sent_s > 0, sent_s, 1.0))[degree],
        memory_of(costs, strategy, those.sizes, which, degree, many),
    )


def _wait_for_tied(found: ReplicaCosts, degree: IntArray, exposed_s: Floats, ahead_s: Floats) -> None:
    """Let each stage wait for the last one that holds the same parameter; both arrays change."""
    for holders, sum_s in found.tied:
        ends_s = (exposed_s - ahead_s)[:, holders]
        ahead_s[:, holders] -= ends_s.max(axis=1, keepdims=True) - ends_s
        exposed_s[:, holders] += sum_s[degree][:, np.newaxis]


def _chained_s(exposed_s: Floats, is_chained: bool) -> Floats:
    """Return the exposed seconds of each stage; a chained one waits for those of all stages behind it too."""
    return np.cumsum(exposed_s[:, ::-1], axis=1)[:, ::-1].copy() if is_chained else exposed_s


def _of_batches(many: IntArray, one: Floats, two: Floats, three: Floats) -> Floats:
    """Return seconds of ``many`` batches, of those of one, two and three: each further one adds as much."""
    return np.where(many == 1, one, two + (many - 2) * (three - two))
