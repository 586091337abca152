"""Windows: which layers may lie on either side of each cut, where a partition must be faster than one that is known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cdmpp.partition.chain import capacities, least_seconds
from cdmpp.partition.problem import PartitionProblem

_ROOM = 1 + 1e-9


@dataclass(frozen=True, eq=False)
class Windows:
    """No stage takes more than ``most_s``: what comes before a cut fits on the devices before it, and so behind it."""

    problem: PartitionProblem
    most_s: float
    order: tuple[int, ...] | None = None
    """Kinds of the devices from the first stage to the last; None: they may stand in any order."""

    @cached_property
    def _least_s(self) -> NDArray[np.float64]:
        """Least seconds of each group."""
        graph = self.problem.graph
        return np.bincount(graph.group_of, least_seconds(self.problem), len(graph.reads)).astype(np.float64)

    @cached_property
    def _before(self) -> NDArray[np.bool_]:
        """Group, group -> whether the second comes before the first, or is it."""
        count = len(self.problem.graph.reads)
        found, done = np.eye(count, dtype=np.bool_), set[int]()
        while len(done) < count:
            for group, own in enumerate(self.problem.graph.reads):
                if group not in done and own <= done:
                    for one in own:
                        found[group] |= found[one]
                    done.add(group)
        return found

    @cached_property
    def _shares(self) -> list[float]:
        """Bound the part of its least seconds that each device runs in a second: in their order, or largest first."""
        kinds = capacities(self.problem)
        if self.order is not None:
            return [kinds[kind] for kind in self.order]
        pairs = zip(kinds, self.problem.counts, strict=True)
        return sorted((share for share, count in pairs for _ in range(count)), reverse=True)

    def room(self, devices: int, is_front: bool) -> float:
        """Return the most least-seconds of so many devices at one end."""
        own = self._shares if is_front or self.order is None else self._shares[::-1]
        return _ROOM * self.most_s * sum(own[:devices])

    def cut(self, devices: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which groups come before the cut behind so many devices in any case, and which in no case."""
        behind = len(self.problem.devices) - devices
        until_s, from_s = self._before @ self._least_s, self._before.T @ self._least_s
        return from_s > self.room(behind, is_front=False), until_s > self.room(devices, is_front=True)

    def is_possible(self, has: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which sets of layers fit in front of some cut, with all others behind it."""
        before_s = has @ least_seconds(self.problem)
        behind_s = float(self._least_s.sum()) - before_s
        found, many = np.zeros(len(has), np.bool_), len(self.problem.devices)
        for devices in range(1, many):
            fits = behind_s <= self.room(many - devices, is_front=False)
            found |= (before_s <= self.room(devices, is_front=True)) & fits
        return found
