"""LoopedSchedule: ranks have several stages each, or divide their backward passes, and run what a list says.

It runs as PyTorch's pipeline runtime does: receives are posted long before they are needed, and no pass waits for what
it sends.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cdmpp.platform.limits import Limits
from cdmpp.steps.action_lists import KINDS, ActionLists, Codes
from cdmpp.steps.list_times import Floats, ListTimes, StageSeconds
from cdmpp.steps.schedule import FORWARD, Action, Schedule

IntArray = NDArray[np.int64]
MOST_STAGES = 64
"""Stages of a rank."""
ROUNDS = 4
"""Rounds of micro-batches that are followed one by one."""


@dataclass(frozen=True)
class LoopedSchedule(Schedule):
    """The lists of all ranks decide when a pass runs; gaps that PyTorch's lists have stand for nothing."""

    is_looped: ClassVar[bool] = True
    is_in_v: ClassVar[bool] = False
    """True if the last rank has two neighbouring stages, and the first one the first and the last: stages go to the
    last rank and back. Else each pass over the ranks begins with the first one again."""
    least_stages: ClassVar[int] = 1
    """Fewest stages of a rank for which plans are searched."""

    LIMITS = {"stages_per_rank": Limits(1, MOST_STAGES, "stages of a rank")}
    stages_per_rank: int = 2
    """Stages of each rank, its chunks of the model."""

    def rank_of(self, stage: int, ranks: int) -> int:
        """Return the rank of a stage."""
        turn, place = divmod(stage, ranks)
        return ranks - 1 - place if self.is_in_v and turn % 2 else place

    def stages_of(self, rank: int, ranks: int) -> tuple[int, ...]:
        """Return the stages of a rank, in rising order."""
        backward = ranks - 1 - rank if self.is_in_v else rank
        return tuple(ranks * turn + (backward if turn % 2 else rank) for turn in range(self.stages_per_rank))

    @abstractmethod
    def codes(self, ranks: int, micro_batches: int) -> Sequence[Codes]:
        """Return what each rank runs in one step, in order: codes of ``ActionLists``."""

    def actions(self, rank: int, ranks: int, micro_batches: int) -> tuple[Action, ...]:
        """List the actions of all turns."""
        return tuple(action for turn in self.lists(ranks, micro_batches).turns[rank] for action in turn)

    def is_forward_first(self, ranks: int, micro_batches: int) -> bool:
        """Return True if the first stage does: it never does after the first rounds, behind which all are alike."""
        if micro_batches < 2 or micro_batches > self.alike(ranks, micro_batches):
            return False
        first = [one.kind for one in self.actions(0, ranks, micro_batches) if one.stage == 0]
        return set(first[:micro_batches]) == {FORWARD}

    def lists(self, ranks: int, micro_batches: int) -> ActionLists:
        """Return the lists of all ranks."""
        return _times(self, ranks, micro_batches).lists

    def round(self, ranks: int, micro_batches: int) -> int:  # noqa: ARG002
        """Return the micro-batches after which the order of a rank begins anew."""
        return ranks

    def alike(self, ranks: int, micro_batches: int) -> int:
        """Return the micro-batches of a few rounds, after which each further round is like the last; up to all."""
        return min(micro_batches, ROUNDS * self.round(ranks, micro_batches))

    def step_s(self, seconds: StageSeconds, ranks: int, micro_batches: IntArray) -> Floats:
        """Return the seconds from step to step, by the lists: each pass waits for its rank and for what it reads.

        A rank begins the next step when it has ended this one: where backward passes are divided, ranks that begin
        late end late. Else the first rank begins first and ends last.

        Args:
            seconds: of all stages.
            ranks: of the pipeline.
            micro_batches: of each plan.

        Returns:
            (plans,) seconds. Rounds beyond the first ``ROUNDS`` take as long as the one before the last of these, or as
            the work of a rank.
        """
        step_s, round_s = np.empty((2, len(micro_batches)))
        for many in np.unique(micro_batches).tolist():
            rows, times = np.flatnonzero(micro_batches == many), _times(self, ranks, self.alike(ranks, many))
            step_s[rows], round_s[rows] = times.step_s(
                seconds.taken(rows), self.divides_backward, self.round(ranks, many)
            )
        few, each = self._of_each(self.alike, ranks, micro_batches), self._of_each(self.round, ranks, micro_batches)
        later_s = np.maximum(round_s, self.busy_s(seconds, ranks, few).max(axis=1) * each / few)
        return step_s + (micro_batches - few) / each * np.where(few < micro_batches, later_s, 0.0)

    def busy_s(self, seconds: StageSeconds, ranks: int, micro_batches: IntArray) -> Floats:
        """Return the seconds for which each rank runs passes in a step, (plans, ranks); ``micro_batches``: of each."""
        found, numbers = np.zeros_like(seconds.forward), np.unique(micro_batches)
        few = self._of_each(self.alike, ranks, numbers)
        which = np.searchsorted(numbers, micro_batches)
        for kind in KINDS:
            counts = np.array([self.lists(ranks, one).counts(kind) for one in few.tolist()])
            found += counts[which] * seconds.of(kind)
        return self.of_ranks(found * micro_batches[:, np.newaxis] / few[which, np.newaxis], ranks)

    @staticmethod
    def _of_each(rule: Callable[[int, int], int], ranks: int, micro_batches: IntArray) -> IntArray:
        """Apply a rule for a number of ranks and micro-batches to each of several numbers of these."""
        numbers, which = np.unique(micro_batches, return_inverse=True)
        return np.array([rule(ranks, one) for one in numbers.tolist()], np.int64)[which.ravel()]

    def of_ranks(self, values: NDArray[Any], ranks: int) -> NDArray[Any]:
        """Sum values of stages, (plans, stages), over the stages of each rank; (plans, ranks)."""
        found: NDArray[Any] = values[:, _stages(self, ranks)].sum(axis=2)
        return found


@lru_cache(maxsize=512)
def _times(schedule: LoopedSchedule, ranks: int, micro_batches: int) -> ListTimes:
    owners = tuple(schedule.rank_of(stage, ranks) for stage in range(ranks * schedule.stages_per_rank))
    return ListTimes(ActionLists(tuple(schedule.codes(ranks, micro_batches)), owners, micro_batches))


@lru_cache(maxsize=512)
def _stages(schedule: LoopedSchedule, ranks: int) -> NDArray[np.int64]:
    """Stages of each rank, in rising order."""
    return np.array([schedule.stages_of(rank, ranks) for rank in range(ranks)])
