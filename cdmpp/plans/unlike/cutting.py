"""Cutting: where the stages of an arrangement may begin, and the cuts under which the slowest of them is fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cdmpp.collectives.topology import Topology
from cdmpp.errors import CdmppError
from cdmpp.plans.cut_places import CutPlaces
from cdmpp.plans.unlike.arrangement import Column
from cdmpp.plans.unlike.cuts import Floats, at_places, balanced_over, named_places, parts_s

_STATES = 4
"""Bytes that a stage holds for each byte of its parameters, about: these, their gradients and two states."""


@dataclass(frozen=True)
class Cutting:
    """Its arrays have a place for the start, each place where a stage may begin, and the end."""

    names: tuple[str, ...]
    """Names of the places where a stage may begin."""
    until_s: Mapping[str, Floats]
    """Device -> seconds of both passes of all that comes before each place."""
    sent_s: Mapping[str, Floats]
    """Device -> seconds of both messages across each place, among nodes of the device."""
    held_bytes: Floats
    """Bytes that stand for those of all that comes before each place: parameters with states, and what is saved."""
    devices: Mapping[Column, tuple[str, ...]]
    """Devices of a replica -> those of its stages: a rank may have several."""

    @classmethod
    def of(
        cls, on: Mapping[str, CutPlaces], topology: Topology, pair: tuple[int, int],
        devices: Mapping[Column, tuple[str, ...]],
    ) -> Cutting:  # fmt: skip
        """Look for places that all devices have.

        Args:
            on: device -> where a rank on it can be cut.
            topology: the links of the job.
            pair: two ranks that pass micro-batches on to each other.
            devices: as of the class.

        Raises:
            CdmppError: there are fewer than stages need.
        """
        count = len(next(iter(devices.values())))
        named = {name: named_places(each, count) for name, each in on.items()}
        first = next(iter(on))
        names = tuple(name for name in named[first] if all(name in each for each in named.values()))
        if len(names) < count - 1:
            raise CdmppError(f"{count} stages of a model with {len(names)} places that are alike on all devices")
        places = [named[first][name] for name in names]
        sizes = on[first].bytes_at(places)
        return cls(
            names,
            {name: at_places(each.until_s, [named[name][one] for one in names]) for name, each in on.items()},
            {
                name: np.pad(2 * topology.on(name).latency_s("send_recv", sizes, pair), 1)
                for name in on
            },
            _held_bytes(on[first], places),
            devices,
        )  # fmt: skip

    def chosen(self, weights: Mapping[Column, float], caps: Floats) -> tuple[int, ...]:
        """Return the places of the best cuts; nothing where no cuts keep to ``caps``.

        Args:
            weights: seconds of the stages of each replica count so many times.
            caps: (stages,) most of ``held_bytes`` of each stage.
        """
        count, total = len(caps), max(weights.values())
        held = self.held_bytes[None, :] - self.held_bytes[:, None]
        length_s = np.zeros((count, *held.shape))
        for column, weight in weights.items():
            at = self.devices[column]
            for stage, device in enumerate(at):
                begin_s, end_s = (
                    np.maximum(self.sent_s[device], self.sent_s[at[other]]) if 0 <= other < count else None
                    for other in (stage - 1, stage + 1)
                )
                own = parts_s(self.until_s[device], (begin_s, end_s)) * (weight / total)
                length_s[stage] = np.maximum(length_s[stage], own)
        for stage, cap in enumerate(caps.tolist()):
            length_s[stage][held > cap] = np.inf
        return balanced_over(length_s)

    def named(self, places: Sequence[int]) -> tuple[str, ...]:
        """Return the names of places."""
        return tuple(self.names[place - 1] for place in places)

    def stage_bytes(self, places: Sequence[int]) -> Floats:
        """Return ``held_bytes`` of each stage between cuts."""
        return np.diff(self.held_bytes[[0, *places, -1]])


def _held_bytes(on: CutPlaces, places: Sequence[int]) -> Floats:
    """Sum up what stands for the bytes that are held, before each place."""
    each = np.zeros(len(on.rank.ops) + 1)
    for op, place in ((on.rank.ops[place], place) for place in on.forward):
        each[place + 1] += op.output_bytes if op.saved_bytes is None else op.saved_bytes
    for one in on.rank.gradients:
        if one.readers:
            each[min(one.readers) + 1] += _STATES * one.bytes
    return at_places(np.cumsum(each), places)
