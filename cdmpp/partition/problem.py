"""PartitionProblem: a network, devices and a schedule; and what each possible stage takes and holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from cdmpp.collectives.collective import MOST_RANKS
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import UsageError
from cdmpp.partition.devices import StageDevice, kinds_of, pair_link
from cdmpp.partition.downsets import Downsets
from cdmpp.partition.graph import PartitionGraph
from cdmpp.plans.schedules import SCHEDULES
from cdmpp.platform.limits import Limits, check_all, fitting, numbers
from cdmpp.steps.schedule import Schedule

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PartitionProblem:
    """Cut ``graph`` into stages, at most one a device, so that the slowest stage is as fast as can be."""

    LIMITS: ClassVar = {"micro_batches": Limits(1, 1024, "micro-batches"), "states": numbers(0, 1e3)}

    graph: PartitionGraph
    devices: tuple[StageDevice, ...]
    schedule: Schedule = SCHEDULES["1f1b"]()  # noqa: RUF009
    micro_batches: int = 1
    """Micro-batches of one step."""
    overlap: bool = True
    """True if a stage computes while it sends and receives: only what that does not hide counts."""
    recompute: bool = False
    """True if a stage keeps only its inputs of each micro-batch, and runs its forward pass again before the backward
    pass."""
    states: float = 2.0
    """Bytes of optimizer states for each byte of parameters."""
    replicas: bool = False
    """True if several equal devices may share a stage, each with some of the micro-batches, as in PipeDream."""

    def __post_init__(self) -> None:
        check_all("devices", self.devices, StageDevice)
        for name in ("micro_batches", "states"):
            fitting(name, getattr(self, name), type(getattr(self, name)), self.LIMITS[name])
        if not self.devices or len(self.devices) > MOST_RANKS:
            raise UsageError(f"{len(self.devices)} devices: give from 1 to {MOST_RANKS}")
        for one in self.devices:
            if len(one.forward_s) != self.graph.count:
                raise UsageError(
                    f"device {one.name} has times of {len(one.forward_s)} layers, and the network {self.graph.count}"
                )
        most = len(self.graph.reads)
        if len(self.devices) > most and not self.replicas:
            raise UsageError(
                f"{len(self.devices)} devices, and a network that can be cut into {most} stage{'s' * (most > 1)} at "
                f"most: give at most {most} device{'s' * (most > 1)}, or let several share a stage"
            )

    @cached_property
    def kinds(self) -> tuple[StageDevice, ...]:
        """Return one device of each kind."""
        return kinds_of(self.devices)[0]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Return how many devices there are of each kind."""
        return kinds_of(self.devices)[1]

    def ranks(self, after: int, replicas: int = 1) -> int:
        """Return the stages from one on to the last, as a schedule counts them.

        Later stages have ``after`` devices. Each of ``replicas`` has as many micro-batches under way as it would have
        if all later stages had that many devices, too.
        """
        return -(-(after + replicas) // replicas)

    def live(self, after: int, replicas: int = 1) -> int:
        """Count the micro-batches that a device holds at a time; arguments as of ``ranks``."""
        ranks, many = self.ranks(after, replicas), -(-self.micro_batches // replicas)
        if not self.schedule.flushes:  # there are enough to fill all stages
            many += 4 * len(self.devices)
        return self.schedule.live_micro_batches(0, ranks, many)

    def versions(self, after: int, replicas: int = 1, is_first: bool = True) -> int:
        """Count the versions of its weights that a device holds; arguments as of ``staleness``."""
        return self.schedule.weight_versions(*self._place(after, replicas, is_first))

    def staleness(self, after: int, replicas: int = 1, is_first: bool = True) -> int:
        """Return the staleness of the gradients of a stage; a first stage has none in front, others have some.

        How many are in front makes no difference to any schedule. Other arguments as of ``ranks``.
        """
        return self.schedule.staleness(*self._place(after, replicas, is_first))

    def _place(self, after: int, replicas: int, is_first: bool) -> tuple[int, int]:
        """Rank of a stage, and number of all ranks, as a schedule counts them."""
        front = 0 if is_first else 1
        return front, front + self.ranks(after, replicas)

    @property
    def updates(self) -> float:
        """Return the updates of a stage for each micro-batch."""
        return 1.0 if self.schedule.updates_each else 1 / self.micro_batches


@dataclass(frozen=True, eq=False)
class StageCosts:
    """Matrices over stages: a row for the set of layers before a stage, a column for that before the next one."""

    problem: PartitionProblem
    downsets: Downsets

    def _between(self, until: Floats) -> Floats:
        return until[None, :] - until[:, None]

    @cached_property
    def _sent(self) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
        return self.downsets.crossing(), self.downsets.crossing(is_backward=True)

    @cached_property
    def _tied(self) -> list[tuple[int, Floats, Floats]]:
        """Bytes of a tied parameter, the stages that hold it, and those of them that share it with others."""
        found = []
        for one in self.problem.graph.tied:
            held, shared = self.downsets.held(one.readers)
            found.append((one.bytes, held.astype(float), shared.astype(float)))
        return found

    @cached_property
    def held_bytes(self) -> Floats:
        """Bytes of the parameters of a stage."""
        found = self._between(self.downsets.sums(self.problem.graph.own_bytes))
        for size, held, _ in self._tied:
            found = found + size * held
        return found

    def update_s(self, kind: int, replicas: int = 1) -> Floats:
        """Seconds of one update of a stage: with the sums over replicas, and over stages of parameters they share.

        Where messages overlap computing, sums over replicas count as far as one backward pass does not hide them.
        """
        device, graph = self.problem.kinds[kind], self.problem.graph
        wire = pair_link(device.link, device.link)
        found = self.held_bytes * (device.update_s / max(graph.parameter_bytes, 1))
        for size, _, shared in self._tied:
            found = found + 2 * wire.seconds(size) * shared
        if replicas > 1:
            steps = 2 * (replicas - 1)
            sums_s = steps * (wire.alpha_s + self.held_bytes / replicas * wire.beta_s) * (self.held_bytes > 0)
            if self.problem.overlap:  # each gradient is summed while the backward pass goes on to the layers before
                sums_s = np.maximum(sums_s - self._backward_s(kind), 0.0)
            found = found + sums_s
        return found + device.host.update_s

    def _backward_s(self, kind: int) -> Floats:
        """Seconds of the layers of a stage in a backward pass, with the forward pass that runs again."""
        device = self.problem.kinds[kind]
        layers_s = device.backward_s + self.problem.recompute * device.forward_s
        return self._between(self.downsets.sums(layers_s))

    def passes_s(self, kind: int, replicas: int = 1) -> tuple[Floats, Floats]:
        """Return the seconds that a stage computes for each micro-batch, in forward and in backward passes.

        With what its host adds to each pass and, where messages go meanwhile, to each message. The update belongs to
        backward passes; where the two have a worker each, copying of weights to forward passes.
        """
        problem, device = self.problem, self.problem.kinds[kind]
        forward_s = self._between(self.downsets.sums(device.forward_s)) + device.host.pass_s
        backward_s = self._backward_s(kind) + device.host.pass_s
        if problem.overlap:
            (many, _), (back, _) = self._sent
            received, send_s = self.received_s(kind), device.host.send_s
            forward_s = forward_s + received[0] + send_s * many[None, :]
            backward_s = backward_s + received[1] + send_s * back[:, None]
        rate = 1 / replicas if problem.schedule.updates_each else problem.updates
        update_s = rate * self.update_s(kind, replicas)
        if problem.schedule.passes_side_by_side:
            forward_s = forward_s + replicas * rate * self.held_bytes / device.copy_bytes_per_s
        return forward_s / replicas, backward_s / replicas + update_s

    def received_s(self, kind: int) -> tuple[Floats, Floats]:
        """Return what the host adds to forward and to backward passes for messages that they need."""
        receive_s, ((many, _), (back, _)) = self.problem.kinds[kind].host.receive_s, self._sent
        return receive_s * many[:, None], receive_s * back[None, :]

    def messages_s(self, kind: int, before: AlphaBeta, after: AlphaBeta) -> tuple[Floats, Floats, Floats, Floats]:
        """Return seconds of a micro-batch's messages: results received, results sent, gradients sent and received.

        The first and third are of the set in front of a stage, the others of that behind it; each an array over sets.
        """
        link = self.problem.kinds[kind].link
        front, behind = pair_link(before, link), pair_link(link, after)
        (many, size), (back, back_size) = self._sent
        return (
            many * front.alpha_s + size * front.beta_s,
            many * behind.alpha_s + size * behind.beta_s,
            back * front.alpha_s + back_size * front.beta_s,
            back * behind.alpha_s + back_size * behind.beta_s,
        )

    def seconds(self, kind: int, before: AlphaBeta, after: AlphaBeta, replicas: int = 1) -> Floats:
        """Return the seconds of a stage for each micro-batch, with the exposed messages.

        Args:
            kind: of the stage's devices.
            before: link of the device of the stage before.
            after: link of the device of the stage behind.
            replicas: devices that share the stage.
        """
        forward_s, backward_s = self.passes_s(kind, replicas)
        received, sent, returned, given = self.messages_s(kind, before, after)
        has_two = self.problem.schedule.passes_side_by_side
        if not self.problem.overlap:
            forward_s = forward_s + (received[:, None] + sent[None, :]) / replicas
            backward_s = backward_s + (returned[:, None] + given[None, :]) / replicas
        compute_s = np.maximum(forward_s, backward_s) if has_two else forward_s + backward_s
        if not self.problem.overlap:
            return compute_s
        beta_s = self.problem.kinds[kind].link.beta_s
        size, back = self._sent[0][1], self._sent[1][1]
        front, behind = np.maximum(received, returned), np.maximum(sent, given)
        each = np.maximum(front[:, None], behind[None, :])
        out, into = back[:, None] + size[None, :], size[:, None] + back[None, :]
        return np.maximum(compute_s, np.maximum(each, beta_s * np.maximum(out, into)) / replicas)

    def stash_bytes(self, after: int, replicas: int = 1) -> Floats:
        """Bytes that a device keeps of the micro-batches under way, from the forward to the backward pass."""
        saved = self._between(self.downsets.sums(self.problem.graph.column("saved_bytes")))
        received, live = self._received[:, None], self.problem.live(after, replicas)
        return live * received + saved if self.problem.recompute else live * (saved + received)

    @cached_property
    def _received(self) -> Floats:
        found = self._sent[0][1].copy()
        found[0] = self.problem.graph.input_bytes
        return found

    @cached_property
    def _passing(self) -> Floats:
        """Bytes that are there only in a pass: gradients received and sent, and what a layer needs while it runs."""
        back = self._sent[1][1]
        return back[:, None] + back[None, :] + self.downsets.most(self.problem.graph.column("work_bytes"))

    def weight_bytes(self, after: int, replicas: int = 1) -> Floats:
        """Bytes of a device's parameters in all versions, of gradients and of optimizer states."""
        versions = np.full((len(self.held_bytes), 1), self.problem.versions(after, replicas, is_first=False))
        versions[0] = self.problem.versions(after, replicas)
        return self.held_bytes * (versions + 1 + self.problem.states)

    def bytes(self, after: int, replicas: int = 1) -> Floats:
        """Return the most bytes that a device of a stage holds.

        Args:
            after: devices of later stages.
            replicas: devices that share the stage.
        """
        return self.weight_bytes(after, replicas) + self.stash_bytes(after, replicas) + self._passing

    def passing_bytes(self) -> Floats:
        """Bytes of a stage that are there only while a pass runs."""
        return self._passing

    def limited_s(
        self, kind: int, before: AlphaBeta, after: AlphaBeta, devices_after: int, replicas: int = 1
    ) -> Floats:
        """Return ``seconds``; infinite where sets are no part of each other, or the stage does not fit."""
        found = np.where(self.downsets.is_within, self.seconds(kind, before, after, replicas), math.inf)
        limit = self.problem.kinds[kind].memory_bytes
        if math.isinf(limit):
            return found
        return np.where(self.bytes(devices_after, replicas) <= limit, found, math.inf)

    def missing_bytes(self, kind: int, devices_after: int, replicas: int = 1) -> Floats:
        """Return the bytes by which a stage exceeds its device, at least 0; infinite where sets are no part."""
        over = self.bytes(devices_after, replicas) - self.problem.kinds[kind].memory_bytes
        return np.where(self.downsets.is_within, np.maximum(over, 0.0), math.inf)
