"""Visits to programs between two looks at the reference kernels. Kits carry it: standard library only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from cdmpp.measure import protocol
from cdmpp.measure.protocol import Timed
from cdmpp.measure.reference_kernels import ReferenceKernels, Timing
from cdmpp.platform.workers import Reply, Worker, run_many

Item = TypeVar("Item", bound=Timed)


@dataclass
class Windows(Generic[Item]):
    """Programs are timed on ``workers``; those that need another visit wait in ``active`` for the next window."""

    workers: Sequence[Worker]
    reference_kernels: ReferenceKernels
    timing: Timing
    visit_limit_s: float = protocol.VISIT_LIMIT_S
    min_separation_s: float = protocol.CPU.min_separation_s
    active: list[Item] = field(default_factory=list)

    def measure(self, fresh: Sequence[Item], fail: Callable[[Item, Reply], None]) -> list[Item]:
        """Run one window: a first visit to each of ``fresh``, another to each active program.

        Returns the programs whose visits are complete; ``fail`` is called with those that cannot be timed.
        """
        again = list(self.active)
        self.active.extend(fresh)
        quiet = self.reference_kernels.wait_until_quiet()
        for group in (list(fresh), again):
            if group:
                quiet = self._segment(group, quiet, fail)
        finished = [item for item in self.active if item.visits.complete]
        self.active = [item for item in self.active if not item.visits.complete]
        return finished

    def _segment(self, group: Sequence[Item], quiet_before: bool, fail: Callable[[Item, Reply], None]) -> bool:
        """One visit to each program of ``group`` between two looks at the reference kernels; returns the later look."""
        taken: list[tuple[Item, Reply, float]] = []
        begun: list[float] = []

        def requests() -> Iterator[dict[str, Any]]:
            for item in group:
                wait = item.visits.last_start + self.min_separation_s - time.monotonic()
                if wait > 0:
                    time.sleep(wait)
                begun.append(time.monotonic())
                yield self.timing(item)

        for index, reply in run_many(self.workers, requests(), self.visit_limit_s):
            item = group[index]
            if "cause" in reply:
                self.active.remove(item)
                fail(item, reply)
            else:
                taken.append((item, reply, begun[index]))
        # Several looks: one burst at the very end must not void a minute of visits, which are compared anyway.
        quiet_after = self.reference_kernels.wait_until_quiet()
        for item, reply, begin in taken:
            item.visits.add(reply["samples"], quiet_before and quiet_after, begin, reply.get("clock_mhz"))
        return quiet_after
