"""RoundRobin: workers push and pull one after the other, in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdmpp.steps.decisions import Decisions
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.registry import SYNCHRONIES


@SYNCHRONIES.register
@dataclass(frozen=True)
class RoundRobin(Synchrony):
    """A worker pushes and pulls in its turn only, so that it has the servers' links to itself.

    Source: Chen, Wang and Li, "Round-robin synchronization: mitigating communication bottlenecks in parameter servers",
    2019.
    """

    name = "r2sp"
    title = "workers push and pull in turns"

    def decisions(self, workers: int) -> Decisions:
        """Give the first turn to worker 0."""
        return _Turns(workers)


class _Turns(Decisions):
    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._turn = 0
        self._ready: set[int] = set()

    def ready(self, worker: int, now_s: float) -> Sequence[int]:
        self._ready.add(worker)
        return self._begin()

    def pulled(self, worker: int, now_s: float) -> Sequence[int]:
        self._turn = (self._turn + 1) % self.workers
        return self._begin()

    def _begin(self) -> Sequence[int]:
        if self._turn not in self._ready:
            return ()
        self._ready.remove(self._turn)
        return (self._turn,)
