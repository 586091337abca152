"""RankWork: what one rank computes in one training step, wherever that is known from: a prediction or a trace.

What ranks exchange is no part of it: a scheme (data parallel, sharded, parameter server) adds that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cdmpp.errors import DataError
from cdmpp.simulate.task import check_seconds

PHASES = ("forward", "backward", "update")


@dataclass(frozen=True)
class Operation:
    """A kernel, or an operator of a framework with all that it runs."""

    name: str
    """Need not be unique: an operation is known by its place."""
    phase: str
    """One of ``PHASES``. An update waits for the gradients that were exchanged."""
    duration_s: float
    """Alone on its device, nothing of other ranks waited for."""
    gap_s: float = 0.0
    """After its end until its stream is free again: the host launches the next one."""
    kind: str = ""
    """What work it is, such as ``conv2d``; for reports alone."""
    stream: str = "compute"
    """Queue of its rank: operations of one stream run in the order in which they are given."""
    after: tuple[int, ...] = ()
    """Places of earlier operations on other streams that it waits for."""
    is_recomputed: bool = False
    """Whether it runs an operation of the forward pass again, in the backward pass."""


@dataclass(frozen=True)
class Gradient:
    """What one parameter gives to exchange."""

    name: str
    """Of the parameter."""
    bytes: int
    """Of the gradient as it is exchanged."""
    ready_after: int
    """Place of the operation of the backward pass that makes it."""


@dataclass(frozen=True)
class Unit:
    """Parameters that sharded training gathers together, such as those of a transformer block."""

    name: str
    bytes: int
    """Of all its parameters, not cut; its gradients have as many."""
    forward: tuple[int, int]
    """Places of the first and the last operation of the forward pass that use it."""
    backward: tuple[int, int]
    """The same of the backward pass: parameters must be there before the first, gradients are after the last."""
    is_kept: bool = False
    """Whether it stays gathered from the forward to the backward pass, as the root of FSDP2 does."""


@dataclass(frozen=True)
class RankWork:
    """One step of one rank. Operations stand in the order in which they are launched."""

    rank: int
    operations: tuple[Operation, ...]
    gradients: tuple[Gradient, ...]
    """In the order in which the model has its parameters."""
    units: tuple[Unit, ...] = ()
    """In the order of the forward pass; empty: sharded training cannot be told."""
    start_s: float = 0.0
    """Before the first operation: what a step takes once, such as the next batch."""
    update_shards: int = 1
    """Ranks over which parameters were cut where the updates took so long: 1 where each rank updates all."""

    def __post_init__(self) -> None:
        check_seconds(self.start_s, f"start of rank {self.rank}")
        if self.update_shards < 1:
            raise DataError(f"rank {self.rank}: parameters cut over {self.update_shards} ranks, expected 1 or more")
        for place, operation in enumerate(self.operations):
            what = f"operation {place} ({operation.name!r}) of rank {self.rank}"
            if operation.phase not in PHASES:
                raise DataError(f"{what} is of phase {operation.phase!r}, expected one of {', '.join(PHASES)}")
            check_seconds(operation.duration_s, f"duration of {what}")
            check_seconds(operation.gap_s, f"gap of {what}")
            if wrong := [other for other in operation.after if not 0 <= other < place]:
                raise DataError(f"{what} waits for operation {wrong[0]}, which is no earlier one")
        for gradient in self.gradients:
            self._check(f"gradient {gradient.name!r}", gradient.bytes, (gradient.ready_after,), "backward")
        for unit in self.units:
            self._check(f"unit {unit.name!r}", unit.bytes, unit.forward, "forward")
            self._check(f"unit {unit.name!r}", unit.bytes, unit.backward, "backward")

    def _check(self, what: str, n_bytes: int, places: Sequence[int], phase: str) -> None:
        what = f"{what} of rank {self.rank}"
        if n_bytes < 1:
            raise DataError(f"{what} has {n_bytes} bytes, expected at least 1")
        for place in places:
            if not 0 <= place < len(self.operations) or self.operations[place].phase != phase:
                raise DataError(f"{what} names operation {place}, which is none of the {phase} pass")
        if list(places) != sorted(places):
            raise DataError(f"{what} ends before it begins, at operation {places[-1]}")

    def cut_over(self, ranks: int) -> RankWork:
        """The same where parameters are cut over so many ranks: an update takes as long as its part is large."""
        if ranks == self.update_shards:
            return self
        part = self.update_shards / ranks
        operations = (
            replace(one, duration_s=part * one.duration_s) if one.phase == "update" else one for one in self.operations
        )
        return replace(self, operations=tuple(operations), update_shards=ranks)

    def slowed(self, factor: float) -> RankWork:
        """The same on a device that takes ``factor`` times as long; pauses of the host stay. ``DataError``: not > 0."""
        if not 0 < factor < float("inf"):
            raise DataError(f"rank {self.rank} takes {factor} times as long, expected a positive factor")
        slower = tuple(replace(one, duration_s=factor * one.duration_s) for one in self.operations)
        return replace(self, operations=slower)

    @property
    def phase_s(self) -> dict[str, float]:
        """Phase -> seconds of its operations and the gaps after them."""
        found = dict.fromkeys(PHASES, 0.0)
        for one in self.operations:
            found[one.phase] += one.duration_s + one.gap_s
        return found

    @property
    def gradient_bytes(self) -> int:
        """Of all gradients."""
        return sum(gradient.bytes for gradient in self.gradients)
