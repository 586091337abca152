"""OpSeconds: what the ops of a whole rank take, and what divided operators exchange after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cdmpp.collectives.topology import Topology
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.mesh import Mesh
from cdmpp.plans.overlap import Floats
from cdmpp.plans.sources.source import OpExchange
from cdmpp.plans.work_columns import WorkColumns

HALOS, SPLIT = "halos", "split operators"
"""Kinds of communication of divided operators."""


@dataclass(frozen=True)
class OpSeconds:
    """Each array has a row a micro-batch, a column an op of the rank before it is cut into stages."""

    works: Sequence[WorkColumns]
    """One rank runs this for each size of a micro-batch; the ops are the same."""
    degrees: ParallelDegrees
    """Those that divide operators; others are 1."""
    topology: Topology
    """The links between the ranks of the job."""

    @cached_property
    def compute_s(self) -> Floats:
        """Seconds of each op with its pauses."""
        return np.array([one.times.seconds for one in self.works])

    @cached_property
    def gaps_s(self) -> Floats:
        """Pause after each op."""
        return np.array([one.times.gaps_s for one in self.works])

    @cached_property
    def split_s(self) -> Mapping[str, Floats]:
        """Part of the communication -> seconds that divided operators exchange after each op.

        Ops that need not wait hide a part of it, which is left out.
        """
        found, hidden = dict[str, Floats](), dict[tuple[int, int], Floats]()
        sizes = np.array([one.times.exchanged_bytes for one in self.works], np.float64)
        for one, seconds in zip(self._exchanges, self._exchanges_s(sizes).T, strict=True):
            if one.is_of_update:
                continue
            each = found.setdefault(_part_of(one), np.zeros_like(self.compute_s))
            between = one.after + 1, min(one.before, default=one.after + 1)
            if between[0] < between[1]:  # ops that run meanwhile
                left = hidden.get(between, self.compute_s[:, slice(*between)].sum(axis=1))
                hidden[between], seconds = np.maximum(left - seconds, 0.0), np.maximum(seconds - left, 0.0)
            each[:, max(one.after, 0)] += seconds
        return found

    @cached_property
    def start_up_s(self) -> Floats:
        """Seconds of which divided operators start to exchange after each op, but for halos."""
        found, exchanges = np.zeros_like(self.compute_s), self._exchanges
        for one, seconds in zip(exchanges, self._exchanges_s(np.ones((1, len(exchanges)))).T, strict=True):
            if _part_of(one) == SPLIT and not one.is_of_update:
                found[:, max(one.after, 0)] += seconds
        return found

    def updates_s(self, shards: Floats, is_once: bool = False) -> Floats:
        """Return the seconds of exchanges between passes and update, at the ops that make what is exchanged.

        Args:
            shards: ranks over which gradients are divided; a row for each.
            is_once: True if ranks sum up whole gradients once; else parts, as often as the update reads them.
        """
        found, exchanges = np.zeros((len(shards), self.compute_s.shape[1])), self._exchanges
        parts = np.ones_like(shards) if is_once else shards
        sizes = np.ceil(np.array([one.bytes for one in exchanges], np.float64) / parts[:, np.newaxis])
        seen = set[str]()
        for one, seconds in zip(exchanges, self._exchanges_s(sizes).T, strict=True):
            if one.is_of_update and not (is_once and one.name in seen):
                seen.add(one.name)
                found[:, one.after] += seconds
        return found

    @cached_property
    def busy_s(self) -> Floats:
        """Seconds of each op, and of what divided operators exchange after it."""
        return self.compute_s + sum(self.split_s.values(), np.zeros_like(self.compute_s))

    @cached_property
    def alike(self) -> NDArray[np.int64]:
        """Number of each op, the same for those that take as long at all micro-batches."""
        return _equal_columns(np.concatenate([self.busy_s, self.gaps_s]))

    @property
    def _exchanges(self) -> Sequence[OpExchange]:
        return self.works[0].work.exchanges

    def _exchanges_s(self, sizes: Floats) -> Floats:
        """Seconds of each exchange, between the ranks that are farthest apart; those alike are priced at once.

        Args:
            sizes: (micro-batches, exchanges) bytes.
        """
        found, alike = np.empty_like(sizes), dict[tuple[object, ...], list[int]]()
        for place, one in enumerate(self._exchanges):
            alike.setdefault((one.kind, one.degree, one.shift, one.span, one.is_ring), []).append(place)
        for places in alike.values():
            one = self._exchanges[places[0]]
            group = Mesh(self.degrees).group_of(0, (one.degree,))
            members = {self.topology.shape(pair): pair for pair in one.pairs(group)} if one.shift else {None: group}
            own = sizes[:, places]
            found[:, places] = np.max(
                [self.topology.latency_s(one.kind, own, each) for each in members.values()], axis=0
            )
        return found


def _part_of(one: OpExchange) -> str:
    return HALOS if one.degree == "spatial" else SPLIT


def _equal_columns(values: Floats) -> NDArray[np.int64]:
    """Number each column, equal ones alike; an array with a number a column."""
    found = np.zeros(values.shape[1], np.int64)
    for row in values:
        _, own = np.unique(row, return_inverse=True)
        found = found * (int(own.max(initial=0)) + 1) + own
        _, found = np.unique(found, return_inverse=True)
    return found
