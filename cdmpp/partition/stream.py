"""Stream: in which order a stage runs its passes, one step after another, and which of them an update follows.

The replay makes its tasks of it, and real processes run it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cdmpp.steps.schedule import Action, Schedule


@dataclass(frozen=True)
class Stream:
    """So many micro-batches, a whole number of steps where the schedule flushes."""

    schedule: Schedule
    step: int
    """Micro-batches of one step."""
    count: int

    def actions(self, stage: int, ranks: int, replicas: int = 1) -> Iterator[Action]:
        """List the passes of a stage, those of each replica in its order.

        Args:
            stage: its number, for the actions.
            ranks: stages from this one on to the last, as the schedule counts them.
            replicas: devices that share the stage, each with some of the micro-batches.
        """
        each = self.step if self.schedule.flushes else self.count
        for begin in range(0, self.count, each):
            for replica in range(replicas):
                for one in self.schedule.actions(0, ranks, len(range(replica, each, replicas))):
                    yield Action(stage, one.kind, begin + replica + replicas * one.micro_batch)

    def lasts(self, number: int, replicas: int = 1) -> Sequence[int]:
        """List the last micro-batch of each replica of those whose gradients go into one update with that of one."""
        each = replicas if self.schedule.updates_each else self.step
        begin = number - number % each
        return range(begin, min(begin + each, self.count))[-replicas:]
