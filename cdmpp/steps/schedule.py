"""Schedule: in which order the stages of a pipeline run their micro-batches. The protocol that every schedule follows.

A schedule is one file of ``cdmpp/plans/schedules``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cdmpp.platform.limits import Limits, check_fields

FORWARD, BACKWARD = "forward", "backward"
INPUTS, WEIGHTS = "backward of inputs", "backward of weights"
"""Kinds of actions. The last two are parts of a backward pass: gradients of what a stage got, and of its weights."""


class Action(NamedTuple):
    """One stage runs one pass of one micro-batch."""

    stage: int
    kind: str
    """One of the kinds above."""
    micro_batch: int


@dataclass(frozen=True)
class Schedule(ABC):
    """It orders the actions of each rank. A rank has one stage; one that has several names each in its actions.

    It is a synchrony, too: it says what a stage's update waits for, and how old the weights of a gradient are. As it
    stands, a step ends with one update, which waits for all micro-batches and which the next step waits for.
    """

    LIMITS: ClassVar[Mapping[str, Limits]] = {}
    """Name of a field that holds numbers -> what they may be."""
    name: ClassVar[str]
    """The name in files and on the command line."""
    title: ClassVar[str]
    """A few words for a reader."""
    is_in_torch: ClassVar[bool] = True
    """False if ``torch.distributed.pipelining`` has no such schedule: plans are not searched with it."""
    flushes: ClassVar[bool] = True
    """True if a stage begins no micro-batch of the next step before its update. Else micro-batches follow each other
    without an end, and ``actions`` are those of a stream of them."""
    updates_each: ClassVar[bool] = False
    """True if each micro-batch ends with an update of its own; else those of a step share one."""
    passes_side_by_side: ClassVar[bool] = False
    """True if a stage has two workers, which share its memory: one runs forward passes, the other backward passes."""
    is_looped: ClassVar[bool] = False
    """True of a ``LoopedSchedule``: a rank may have several stages."""
    divides_backward: ClassVar[bool] = False
    """True if some backward passes are divided into gradients of inputs and of weights."""

    def __post_init__(self) -> None:
        check_fields(self, f"{self.name}.")

    @property
    def stages_per_rank(self) -> int:
        """Return the stages of a rank."""
        return 1

    def rank_of(self, stage: int, ranks: int) -> int:  # noqa: ARG002
        """Return the rank of a stage."""
        return stage

    def stages_of(self, rank: int, ranks: int) -> tuple[int, ...]:
        """Return the stages of a rank, in rising order."""
        return tuple(one for one in range(ranks * self.stages_per_rank) if self.rank_of(one, ranks) == rank)

    @abstractmethod
    def actions(self, rank: int, ranks: int, micro_batches: int) -> tuple[Action, ...]:
        """List what one of the ``ranks`` of a pipeline runs in one step, in order."""

    def live_micro_batches(self, rank: int, ranks: int, micro_batches: int) -> int:
        """Count the micro-batches whose activations a rank holds at a time, at most.

        Each begins with its forward pass and ends with its backward pass, of each stage of the rank.
        """
        alive = most = 0
        for action in self.actions(rank, ranks, micro_batches):
            alive += {FORWARD: 1, INPUTS: 0}.get(action.kind, -1)
            most = max(most, alive)
        return most

    def is_forward_first(self, ranks: int, micro_batches: int) -> bool:
        """Return True if a stage runs all of several forward passes before its first backward pass.

        If any does, the first one does, which is the last to get a gradient.
        """
        return self.live_micro_batches(0, ranks, micro_batches) == micro_batches > 1

    def weight_versions(self, rank: int, ranks: int) -> int:  # noqa: ARG002
        """Count the versions of its weights that a rank holds."""
        return 1

    def staleness(self, rank: int, ranks: int) -> int:  # noqa: ARG002
        """Count the updates of a rank between the forward pass of a micro-batch and the update with its gradient."""
        return 0

    def why_not(self, ranks: int, micro_batches: int) -> str:  # noqa: ARG002
        """Say why a step of so many micro-batches on so many ranks is not what the schedule says; empty if it is."""
        return ""

    def in_flight(self, ranks: int, micro_batches: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ``live_micro_batches`` of several numbers of micro-batches: a row each, a column a rank."""
        numbers, which = np.unique(micro_batches, return_inverse=True)
        found = [[self.live_micro_batches(rank, ranks, int(number)) for rank in range(ranks)] for number in numbers]
        return np.array(found, np.int64).reshape(-1, ranks)[which.ravel()]

    def passes_s(
        self, forward_s: NDArray[np.float64], backward_s: NDArray[np.float64], micro_batches: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the seconds from the first forward to the last backward pass by closed form, without messages.

        The slowest stage runs without a pause, once the first micro-batch has come to it and until the last leaves it.
        Without flushes that is so from step to step, so that a step takes the seconds of the slowest stage.

        Args:
            forward_s: of one micro-batch on each stage; a row a plan, a column a stage.
            backward_s: the same of the backward pass.
            micro_batches: of each plan.
        """
        slowest_s = (forward_s + backward_s).max(axis=1)
        if self.passes_side_by_side:
            slowest_s = np.maximum(forward_s, backward_s).max(axis=1)
        if not self.flushes:
            return micro_batches * slowest_s
        return (forward_s + backward_s).sum(axis=1) + (micro_batches - 1) * slowest_s

    def warnings(self, ranks: int, micro_batches: int) -> tuple[str, ...]:
        """Say where frameworks refuse what is asked, a sentence each."""
        return ()
