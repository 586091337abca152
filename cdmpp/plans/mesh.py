"""Mesh: the ranks of a job, numbered along its parallel degrees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cdmpp.plans.degrees import ParallelDegrees

ORDER = ("pp", "dp_replicate", "dp_shard", "ep", "cp", "tp", "spatial", "filter", "channel")
"""Degrees from the outermost to the innermost: neighbours along the last ones stand in one node. As in torchtitan."""


@dataclass(frozen=True)
class Mesh:
    """Every rank has one place along each degree."""

    degrees: ParallelDegrees

    @cached_property
    def _numbers(self) -> np.ndarray:
        """Numbers of the ranks; an axis a degree."""
        shape = [getattr(self.degrees, name) for name in ORDER]
        return np.arange(self.degrees.ranks).reshape(shape)

    def place(self, rank: int, degree: str) -> int:
        """Return the place of a rank along a degree, such as its stage along ``pp``."""
        return int(self._places[ORDER.index(degree)][rank])

    @cached_property
    def _places(self) -> tuple[np.ndarray, ...]:
        """Place of every rank along each degree of ``ORDER``."""
        return np.unravel_index(self._numbers.reshape(-1), self._numbers.shape)

    def replica(self, rank: int) -> int:
        """Return the number of the replica that a rank belongs to."""
        return self.place(rank, "dp_replicate") * self.degrees.dp_shard + self.place(rank, "dp_shard")

    def groups(self, *degrees: str) -> tuple[tuple[int, ...], ...]:
        """List groups of ranks that differ only along ``degrees``, each in rising order; by their first ranks."""
        if degrees not in self._groups:
            self._groups[degrees] = self._listed(degrees)
        return self._groups[degrees]

    def unlike_groups(
        self, degrees: tuple[str, ...], places: tuple[int, ...], among: tuple[int, ...]
    ) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """List places in a graph and ranks of one of all groups along ``degrees`` that are alike there.

        Args:
            degrees: as of ``groups``.
            places: rank of the job -> its place in the graph.
            among: these places count; a group without any is left out.
        """
        key = degrees, places, among
        if key not in self._unlike:
            found, own = dict[tuple[int, ...], tuple[int, ...]](), {*among}
            for group in self.groups(*degrees):
                if there := tuple(sorted({places[rank] for rank in group} & own)):
                    found.setdefault(there, group)
            self._unlike[key] = tuple(found.items())
        return self._unlike[key]

    @cached_property
    def _unlike(self) -> dict[object, tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]]:
        return {}

    @cached_property
    def _groups(self) -> dict[tuple[str, ...], tuple[tuple[int, ...], ...]]:
        return {}

    def _listed(self, degrees: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        axes = [ORDER.index(name) for name in sorted(degrees, key=ORDER.index)]
        last = np.moveaxis(self._numbers, axes, range(-len(axes), 0)) if axes else self._numbers
        rows = last.reshape(-1, self.degrees.size(*degrees))
        return tuple(map(tuple, rows.tolist()))

    def group_of(self, rank: int, degrees: Sequence[str]) -> tuple[int, ...]:
        """Return the group of ``groups`` that has a rank."""
        found, stride = [rank], 1
        for name in reversed(ORDER):
            count = getattr(self.degrees, name)
            if name in degrees and count > 1:
                first = rank // stride % count
                found = [one + stride * (number - first) for number in range(count) for one in found]
            stride *= count
        return tuple(found)
