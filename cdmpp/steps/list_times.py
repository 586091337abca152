"""ListTimes: how long a step takes by the lists of its ranks, for many plans at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from cdmpp.steps.action_lists import KINDS, ActionLists
from cdmpp.steps.native import Floats, followed_s


@dataclass(frozen=True)
class StageSeconds:
    """Arrays with a row a plan and a column a stage: seconds for one micro-batch."""

    forward: Floats
    backward: Floats
    inputs: Floats
    weights: Floats
    """The two parts of a backward pass that is divided; what both need is in each."""
    sent: Floats
    """Messages with the results of the stage before, from another rank."""
    returned: Floats
    """Messages with gradients from the next stage, from another rank."""
    ending: Floats
    """A stage's last backward pass takes so much longer, since its rank exchanges gradients with replicas then."""
    update: Floats
    """Seconds of its update, and of all that its rank waits for before the next step, once a step."""

    @classmethod
    def joined(cls, each: Sequence[StageSeconds]) -> StageSeconds:
        """Join the plans of several."""
        return cls(*(np.concatenate([getattr(own, one.name) for own in each]) for one in fields(cls)))

    def taken(self, rows: NDArray[np.int64]) -> StageSeconds:
        """Keep some plans."""
        return StageSeconds(*(getattr(self, one.name)[rows] for one in fields(self)))

    def of(self, kind: str) -> Floats:
        """Return the seconds of one kind of action."""
        return dict(zip(KINDS, (self.forward, self.backward, self.inputs, self.weights), strict=True))[kind]


@dataclass(frozen=True)
class ListTimes:
    """One step of all ranks."""

    lists: ActionLists

    def step_s(self, seconds: StageSeconds, is_steady: bool, each: int) -> tuple[Floats, Floats]:
        """Return the seconds from step to step, and of the last round but one in the backward passes; (plans,).

        Args:
            seconds: of all stages.
            is_steady: whether the second of two steps is taken: ranks that begin late end late. Else the first one.
            each: micro-batches of a round.

        Raises:
            RecursionError: lists that wait for each other.
        """
        lists, updates_s = self.lists, np.zeros((len(seconds.update), self.lists.ranks))
        np.add.at(updates_s.T, np.array(lists.owners), seconds.update.T)
        passes_s = np.concatenate([*map(seconds.of, KINDS), seconds.sent, seconds.returned], axis=1)
        last, before = (max(lists.micro_batches - many * each - 1, 0) for many in (1, 2))
        return followed_s(lists, passes_s, seconds.ending, updates_s, 1 + is_steady, (last, before))
