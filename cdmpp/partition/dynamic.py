"""The exact search: dynamic programming over sets of layers, from the last stage to the first."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.partition.chain import Chain, Part
from cdmpp.partition.downsets import Downsets
from cdmpp.partition.problem import PartitionProblem, StageCosts
from cdmpp.plans.balance import Combine, Floats, extended

_CLOSE = 1e-9


class State(NamedTuple):
    """The best that is known of the stages behind a cut."""

    used: tuple[int, ...]
    """Devices of each kind that they have."""
    link: int
    """Link of the device of the first of them."""
    before: int
    """Link of the device of the stage in front of them."""


@dataclass(frozen=True, eq=False)
class Best:
    """The best way to cut all behind each set, of one state."""

    value: Floats
    ends: NDArray[np.int64]
    """Set at which the first stage ends."""
    kind: NDArray[np.int64]
    replicas: NDArray[np.int64]
    next_link: NDArray[np.int64]
    """Link of the device of the stage behind the first one."""


@dataclass(frozen=True, eq=False)
class DynamicSearch:
    """It finds the best chain among all whose sets are those given."""

    problem: PartitionProblem
    downsets: Downsets

    @cached_property
    def links(self) -> tuple[AlphaBeta, ...]:
        """The different links of devices."""
        return tuple(dict.fromkeys(one.link for one in self.problem.kinds))

    @cached_property
    def _link_of(self) -> list[int]:
        return [self.links.index(one.link) for one in self.problem.kinds]

    @cached_property
    def costs(self) -> StageCosts:
        """Compute the seconds that stages between the sets take."""
        return StageCosts(self.problem, self.downsets)

    @property
    def size(self) -> float:
        """Return about how many numbers a search compares."""
        states = math.prod(one + 1 for one in self.problem.counts) * len(self.links) ** 2
        ways = sum(self.problem.counts) if self.problem.replicas else len(self.problem.counts)
        return float(states * ways * len(self.links)) * len(self.downsets) ** 2

    def best(self) -> Chain | None:
        """Return the chain whose slowest stage is fastest; None where none fits.

        Of several the one on the fewest devices, then the one whose stages are most equal, by the sum of squares.
        """
        found = self._run(np.maximum, math.inf, "seconds")
        if (most := _least(found)) is None:
            return None
        limit = most[0] * (1 + _CLOSE)
        fewest = min(sum(state.used) for state, one in found.items() if one.value[0] <= limit)
        return self._chain(self._run(np.add, limit, "squares"), fewest)

    def with_all_devices(self) -> float:
        """Return the seconds of the slowest stage if every device has one; infinite where that cannot be."""
        found = self._run(np.maximum, math.inf, "seconds")
        own = [one.value[0] for state, one in found.items() if state.used == self.problem.counts]
        return float(min(own, default=math.inf))

    def leanest(self) -> Chain:
        """Return the chain that exceeds the memory of its devices by the fewest bytes."""
        found = self._run(np.maximum, math.inf, "missing")
        least = _least(found)
        assert least is not None
        fewest = min(sum(state.used) for state, one in found.items() if one.value[0] <= least[0])
        return self._chain(found, fewest)

    def _length(self, kind: int, before: int, after: int, behind: int, replicas: int, what: str) -> Floats:
        if what == "missing":
            return self.costs.missing_bytes(kind, behind, replicas)
        found = self._limited(kind, before, after, behind, replicas)
        return found**2 if what == "squares" else found

    @cached_property
    def _kept(self) -> dict[tuple[int, ...], Floats]:
        return {}

    def _limited(self, kind: int, before: int, after: int, behind: int, replicas: int) -> Floats:
        """Seconds of the stages; where memory is no limit they are the same whatever comes behind."""
        is_free = math.isinf(self.problem.kinds[kind].memory_bytes)
        key = (kind, before, after, 0 if is_free else behind, replicas)
        if key not in self._kept:
            if len(self._kept) * len(self.downsets) ** 2 > 2**26:
                self._kept.clear()
            self._kept[key] = self.costs.limited_s(kind, self.links[before], self.links[after], behind, replicas)
        return self._kept[key]

    def _run(self, combine: Combine, limit: float, what: str) -> dict[State, Best]:
        """Best ways of all states; ``limit``: most seconds of a stage, where squares are added up."""
        count, counts = len(self.downsets), self.problem.counts
        end = np.full(count, math.inf)
        end[-1] = 0.0
        zeros = np.zeros(count, np.int64)
        found = {
            State((0,) * len(counts), 0, link): Best(end, zeros, zeros, zeros, zeros) for link in range(len(self.links))
        }
        ordered = sorted(itertools.product(*(range(one + 1) for one in counts)), key=sum)
        for used in ordered:
            for link in range(len(self.links)):
                for kind, own in enumerate(self._link_of):
                    rest = found.get(State(used, link, own))
                    if rest is not None:
                        self._extend(found, used, link, kind, rest, combine, limit, what)
        return {state: one for state, one in found.items() if any(state.used)}

    def _extend(
        self, found: dict[State, Best], used: tuple[int, ...], link: int, kind: int, rest: Best, combine: Combine,
        limit: float, what: str,
    ) -> None:  # fmt: skip
        """Put a stage on a kind of device in front of what a state has."""
        left = self.problem.counts[kind] - used[kind]
        for replicas in range(1, (left if self.problem.replicas else min(left, 1)) + 1):
            now = tuple(one + replicas * (place == kind) for place, one in enumerate(used))
            for before in range(len(self.links)):
                length = self._length(kind, before, link, sum(used), replicas, what)
                if what == "squares":
                    length = np.where(length <= limit**2, length, math.inf)
                value, ends = extended(rest.value, length, combine)
                state = State(now, self._link_of[kind], before)
                found[state] = _better(found.get(state), value, ends, kind, replicas, link)

    def _chain(self, found: dict[State, Best], devices: int) -> Chain:
        own = {state: one for state, one in found.items() if sum(state.used) == devices}
        state = min(own, key=lambda one: own[one].value[0])
        place, parts, has = 0, list[Part](), self.downsets.has
        while place < len(self.downsets) - 1:
            best = found[state]
            end, kind, replicas = (int(column[place]) for column in (best.ends, best.kind, best.replicas))
            parts.append(Part(tuple(np.flatnonzero(has[end] & ~has[place]).tolist()), kind, replicas))
            used = tuple(one - replicas * (number == kind) for number, one in enumerate(state.used))
            state = State(used, int(best.next_link[place]), self._link_of[kind])
            place = end
        return Chain(self.problem, tuple(parts))


def _better(
    before: Best | None, value: Floats, ends: NDArray[np.int64], kind: int, replicas: int, next_link: int
) -> Best:
    numbers = [np.full(len(value), one, np.int64) for one in (kind, replicas, next_link)]
    if before is None:
        return Best(value, ends, *numbers)
    is_new = value < before.value
    olds = (before.kind, before.replicas, before.next_link)
    kept = [np.where(is_new, new, old) for new, old in zip(numbers, olds, strict=True)]
    return Best(np.where(is_new, value, before.value), np.where(is_new, ends, before.ends), *kept)


def _least(found: dict[State, Best]) -> tuple[float, State] | None:
    """The least value from the empty set on, and its state."""
    least = [(float(one.value[0]), state) for state, one in found.items() if one.value[0] < math.inf]
    return min(least) if least else None
