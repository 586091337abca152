"""Stage memory: what the stages of several plans hold, in operations on arrays over plans and stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cdmpp.network.training_step import StepMemory
from cdmpp.plans.allocator import CONTEXT, PARTLY_FILLED
from cdmpp.plans.communicators import communicator_bytes
from cdmpp.plans.live_bytes import LiveBytes
from cdmpp.plans.looped_memory import looped_parts
from cdmpp.plans.memory import peak_parts
from cdmpp.plans.overlap import Floats
from cdmpp.plans.stage_bytes import between, joined, stacked, taken
from cdmpp.plans.stage_costs import StageCosts
from cdmpp.plans.stage_structure import StageStructure
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.strategy import IntArray, RankBytes, Strategy


@dataclass(frozen=True)
class StageMemory:
    """Each number is an array with a row a plan and a column a stage."""

    held: StepMemory
    """The stage would hold this by itself."""
    live: LiveBytes
    own: RankBytes
    """It holds this under its strategy."""
    received: Floats
    """Bytes that its neighbours send for one micro-batch."""
    returned: Floats
    """Bytes of gradients that it sends to the stage before."""
    added: Floats
    """The allocator of a GPU takes this on top."""
    once: Floats
    """Bytes among them that a rank has once, however many stages it has; a number a plan."""

    @classmethod
    def joined(cls, each: Sequence[StageMemory]) -> StageMemory:
        """Join plans."""
        held, live, own = (joined([getattr(one, name) for one in each]) for name in ("held", "live", "own"))
        received, returned, added = (
            np.concatenate([getattr(one, name) for one in each]) for name in ("received", "returned", "added")
        )
        return cls(held, live, own, received, returned, added, np.concatenate([one.once for one in each]))

    def taken(self, rows: IntArray) -> StageMemory:
        """Keep some plans."""
        return StageMemory(
            taken(self.held, rows), taken(self.live, rows), taken(self.own, rows),
            self.received[rows], self.returned[rows], self.added[rows], self.once[rows],
        )  # fmt: skip

    def peak_bytes(self, many: IntArray, in_flight: IntArray, kept: IntArray) -> Floats:
        """Return the most bytes of each stage of each plan.

        Args:
            many: forward passes of one step of each plan.
            in_flight: micro-batches whose activations a stage holds; a row a plan, a column a stage.
            kept: micro-batches whose outputs a stage keeps; the same.
        """
        ones, all_of = np.ones_like(many)[:, np.newaxis], many[:, np.newaxis]
        micro_batches, batches = (all_of, ones) if self.received.shape[1] > 1 else (ones, all_of)
        found = peak_parts(
            self.held, self.own, self.live, micro_batches, in_flight, batches, self.received, self.returned, kept
        )
        each: Floats = found.peak_bytes + self.added
        return each

    def looped_peak_bytes(self, order: LoopedSchedule, many: IntArray, kept: IntArray) -> Floats:
        """Return the most bytes of each rank of each plan.

        Args:
            order: the schedule of all plans.
            many: micro-batches of each plan.
            kept: micro-batches whose outputs the last stage keeps, of each plan.
        """
        ranks = self.received.shape[1] // order.stages_per_rank
        parts = looped_parts(order, ranks, many, kept, self.held, self.own, self.live, self.received, self.returned)
        added = order.of_ranks(self.added, ranks) - (order.stages_per_rank - 1) * self.once[:, np.newaxis]
        each: Floats = parts.peak_bytes + added
        return each


def memory_of(
    costs: StageCosts, strategy: Strategy, sizes: Sequence[Mapping[str, int]], which: IntArray, degree: IntArray,
    many: IntArray,
) -> StageMemory | None:  # fmt: skip
    """Return what the stages of some plans hold; None where memory is unknown.

    Args:
        costs: of the stages.
        strategy: of the replicas.
        sizes: ranks along each degree along which they share parameters, of several numbers of replicas.
        which: place of the micro-batch of each plan.
        degree: place in ``sizes`` of each plan.
        many: forward passes of one step of each plan.
    """
    structure = costs.structure
    if not structure.held.ends:
        return None
    low, most = structure.held.ends
    share = costs.shares[which][:, np.newaxis]
    ways, back = np.unique(np.stack([degree, many > 1]), axis=1, return_inverse=True)
    own = [_own(structure, strategy, sizes[one], 1 + is_many) for one, is_many in ways.T.tolist()]
    own_bytes = taken(stacked([stacked(each) for each, _ in own]), back.ravel())
    outside = [_outside(costs, sizes[one]) for one, _ in ways.T.tolist()]
    added = (np.array([more for _, more in own]) + np.array(outside)[:, np.newaxis])[back.ravel()]
    partly = PARTLY_FILLED if structure.held.is_gpu else 0
    once = (np.array(outside, np.float64) + partly)[back.ravel()]
    return StageMemory(
        between(low, most, share), taken(costs.live, which), own_bytes,
        costs.received_bytes[which], costs.returned_bytes[which], added, once,
    )  # fmt: skip


def _own(
    structure: StageStructure, strategy: Strategy, sizes: Mapping[str, int], batches: int
) -> tuple[list[RankBytes], list[int]]:
    """Return the bytes that each stage holds under a strategy, and those that the allocator of a GPU takes on top."""
    held = structure.held
    found = {number: kind.rank_bytes(strategy, sizes, batches) for number, kind in held.kinds.items()}
    every = [found[number] for number in held.alike]
    return [own for own, _ in every], [more for _, more in every]


def _outside(costs: StageCosts, sizes: Mapping[str, int]) -> int:
    """Return the bytes that a rank holds outside PyTorch."""
    if not costs.structure.held.is_gpu:
        return 0
    shared = {name for name, ranks in sizes.items() if ranks > 1}
    return CONTEXT + communicator_bytes(shared | {*costs.degrees.beyond_one()})
