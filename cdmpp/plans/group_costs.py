"""GroupCosts: what exchanges take on groups of the ranks of a job, each list of exchanges worked out once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from cdmpp.collectives.collective import Collective
from cdmpp.collectives.collective_model import CollectiveEstimate
from cdmpp.collectives.topology import Topology
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.mesh import Mesh
from cdmpp.plans.overlap import Floats
from cdmpp.steps.launches import Launches

Along = tuple[str, ...]
Found = TypeVar("Found")


@dataclass(frozen=True)
class GroupCosts:
    """Stages that recompute, and several strategies, exchange the same as others do."""

    topology: Topology
    """The links between the ranks of the job."""
    _members: dict[tuple[ParallelDegrees, Along], tuple[int, ...]] = field(default_factory=dict, repr=False)
    _launched: dict[object, tuple[Floats, Floats, Floats]] = field(default_factory=dict, repr=False)
    _known: dict[object, tuple[Sequence[object], Any]] = field(default_factory=dict, repr=False)

    def known(self, of: Sequence[object], settings: object, make: Callable[[], Found]) -> Found:
        """Return what was made on these links of the same objects and equal settings, or make it.

        Args:
            of: objects that are known by identity; they are held, so that no other one takes their place.
            settings: what is compared.
            make: it is called where nothing is known.
        """
        key = (*map(id, of), settings)
        if key not in self._known:
            self._known[key] = of, make()
        found: Found = self._known[key][1]
        return found

    def members(self, degrees: ParallelDegrees, along: Along) -> tuple[int, ...]:
        """Return the ranks of the group of rank 0 along some degrees."""
        if (degrees, along) not in self._members:
            self._members[degrees, along] = Mesh(degrees).group_of(0, along)
        return self._members[degrees, along]

    def estimate(self, kind: str, n_bytes: int, members: tuple[int, ...]) -> CollectiveEstimate:
        """Return what one collective takes, with its interval."""
        return self.topology.cost(Collective(kind, n_bytes, len(members), self.topology.backend), members)

    def launched_s(
        self, launches: Launches, many: Sequence[ParallelDegrees], replicating: Along
    ) -> tuple[Floats, Floats, Floats]:
        """Return the seconds of each exchange by itself, those of one kind and group priced at once.

        Args:
            launches: of one stage.
            many: degrees of the job, one for each column of ``launches.bytes``.
            replicating: degrees along which ranks take part that share all parameters.

        Returns:
            (exchanges, degrees) seconds; (degrees,) the start-up of all; (degrees, 3) the time of the largest ones with
            the ends of their intervals.
        """
        key = (
            launches.groups, launches.group.tobytes(), launches.bytes.tobytes(), tuple(many), replicating,
        )  # fmt: skip
        if key not in self._launched:
            self._launched[key] = self._priced(launches, many, replicating)
        return self._launched[key]

    def _priced(
        self, launches: Launches, many: Sequence[ParallelDegrees], replicating: Along
    ) -> tuple[Floats, Floats, Floats]:
        topology, sent, count = self.topology, launches.bytes, len(many)
        costs_s, least_s, ends_s = np.zeros(sent.shape), np.zeros(count), np.zeros((count, 3))
        for group, (kind, asked) in enumerate(launches.groups):
            numbers, along = np.flatnonzero(launches.group == group), asked or replicating
            for place, degrees in enumerate(many):
                members, sizes = self.members(degrees, along), sent[numbers, place]
                costs_s[numbers, place] = seconds = topology.latency_s(kind, sizes, members)
                least_s[place] += np.minimum(topology.start_up_s(kind, members), seconds).sum()
                estimate = self.estimate(kind, max(int(sizes.max()), 1), members)
                ends_s[place] += [estimate.latency_s, estimate.low_s, estimate.high_s]
        return costs_s, least_s, ends_s
