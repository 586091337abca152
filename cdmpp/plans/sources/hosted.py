"""HostedSource: the work of a rank as the host of a training framework dispatches it, and adds up its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cdmpp.collectives.collective import Collective
from cdmpp.collectives.topology import Topology
from cdmpp.errors import DataError
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.framework_host import FrameworkHost
from cdmpp.plans.mesh import Mesh
from cdmpp.plans.sources.source import BehindSource, OpExchange, RankWork, StepSource, StepTimes
from cdmpp.steps.derived import derived
from cdmpp.steps.exchange import START
from cdmpp.steps.strategy import Strategy

_ACCUMULATED = 3
"""Elements that move where a gradient is added to that of earlier passes: two are read, one is written."""
_REACHED = 0.9
"""Share of the memory's bandwidth that a kernel reaches which only adds."""


@dataclass(frozen=True, eq=False)
class _Plain:
    """The work of a rank before its host is known, and its arrays."""

    work: RankWork
    times: StepTimes
    duration_s: NDArray[np.float64]
    first_update: int
    """Place of the first op of the update; that of the end without one."""

    @classmethod
    def of(cls, work: RankWork) -> _Plain:
        if not work.dispatch_s:
            raise DataError("nothing tells when the host dispatches ops: a framework's host needs predicted kernels")
        ops = work.rank.ops
        updates = [place for place, op in enumerate(ops) if op.phase == "update"]
        return cls(work, StepTimes.of(work), np.array([op.duration_s for op in ops]), min(updates, default=len(ops)))


_Key = tuple[int, ParallelDegrees, tuple[Strategy, ...]]


@dataclass(frozen=True)
class HostedSource(BehindSource):
    """Another source, whose ops begin when the framework's host has dispatched them.

    The host runs ahead while ranks exchange. Each gradient of a pass is added into the framework's buffer of gradients,
    whose type is that in which replicas exchange.
    """

    nominal: StepSource
    host: FrameworkHost
    topology: Callable[[int], Topology]
    """Number of ranks -> the links between them."""
    gradient: int = 0
    """Bytes of an element of the buffer of gradients; 0: there is none."""
    element: int = 2
    """Bytes of an element of a parameter."""
    bytes_per_s: float = 0.0
    """Bandwidth of the device's memory; 0: adding up takes no time."""
    compute: float = 1.0
    """Seconds of kernels by those of the source, as measured jobs found them."""
    _plain: dict[_Key, _Plain] = field(default_factory=dict, compare=False, repr=False)
    _works: dict[_Key, RankWork] = field(default_factory=dict, compare=False, repr=False)
    _exchanged: dict[object, float] = field(default_factory=dict, compare=False, repr=False)

    def under(self, host: FrameworkHost, topology: Callable[[int], Topology], compute: float = 1.0) -> HostedSource:
        """Return the same kernels under another host and links; what was read is shared."""
        return replace(self, host=host, topology=topology, compute=compute, _works={}, _exchanged={})

    def work(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> RankWork:
        """Return the work of one rank; errors as of the source."""
        if (key := (batch, degrees, tuple(strategies))) not in self._works:
            plain = self._known(key)
            work, delays_s = plain.work, self._delays_s(plain, degrees).tolist()
            pairs = zip(work.rank.ops, delays_s, (self.compute * plain.duration_s).tolist(), strict=True)
            ops = tuple(derived(op, delay_s=delay, gap_s=0.0, duration_s=seconds) for op, delay, seconds in pairs)
            dispatch_s = tuple(self.host.dispatch * seconds for seconds in work.dispatch_s)
            rank = derived(work.rank, ops=ops, start_s=dispatch_s[0])
            self._works[key] = replace(work, rank=rank, dispatch_s=dispatch_s)
        return self._works[key]

    def times(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> StepTimes | None:
        """Return the times of ``work`` without its ops; errors as of it."""
        plain = self._known((batch, degrees, tuple(strategies)))
        return replace(
            plain.times,
            seconds=self._delays_s(plain, degrees) + self.compute * plain.duration_s,
            gaps_s=np.zeros(len(plain.duration_s)),
            once_s=self.host.dispatch * plain.work.dispatch_s[0] + plain.work.rank.tail_s,
        )

    def _known(self, key: _Key) -> _Plain:
        if key not in self._plain:
            self._plain[key] = _Plain.of(self._accumulating(self.nominal.work(*key)))
        return self._plain[key]

    def _accumulating(self, work: RankWork) -> RankWork:
        """Add gradients into their buffer, which replicas exchange."""
        if not self.gradient:
            return work
        more = dict[int, float]()
        scale = self.gradient / self.element
        gradients = tuple(derived(one, bytes=round(one.bytes * scale)) for one in work.rank.gradients)
        for one in gradients:
            seconds = _ACCUMULATED * one.bytes / (_REACHED * self.bytes_per_s) if self.bytes_per_s else 0.0
            more[one.ready_after] = more.get(one.ready_after, 0.0) + seconds
        ops = tuple(
            derived(op, duration_s=op.duration_s + more[place]) if place in more else op
            for place, op in enumerate(work.rank.ops)
        )
        return replace(work, rank=derived(work.rank, ops=ops, gradients=gradients))

    def _delays_s(self, plain: _Plain, degrees: ParallelDegrees) -> NDArray[np.float64]:
        """Seconds that the device waits for the host before each op."""
        host, work = self.host, plain.work
        dispatch_s = (host.dispatch * np.array(work.dispatch_s)).tolist()
        seconds = [self._exchange_s(one, degrees) for one in work.exchanges]
        launches_s = [host.exchange_s(degrees.size(one.degree)) for one in work.exchanges]
        durations_s = (self.compute * plain.duration_s).tolist()
        found = delays_of(durations_s, dispatch_s, work.exchanges, seconds, launches_s, host.unhidden)
        if plain.first_update < len(found):
            found[plain.first_update] += host.step_s
        return np.array(found)

    def _exchange_s(self, one: OpExchange, degrees: ParallelDegrees) -> float:
        """Seconds of an exchange of divided operators by itself."""
        own = replace(degrees, pp=1, dp_replicate=1, dp_shard=1)
        if (key := (own, one.kind, one.bytes, one.degree, one.shift)) not in self._exchanged:
            group, links = Mesh(own).group_of(0, (one.degree,)), self.topology(own.ranks)
            if one.shift:
                group = max(one.pairs(group), key=lambda pair: abs(pair[1] - pair[0]))
            found = links.cost(Collective(one.kind, one.bytes, len(group), links.backend), group)
            self._exchanged[key] = found.latency_s
        return self._exchanged[key]


def delays_of(
    duration_s: Sequence[float], dispatch_s: Sequence[float], exchanges: Sequence[OpExchange],
    seconds: Sequence[float], launches_s: Sequence[float], unhidden: float,
) -> list[float]:  # fmt: skip
    """Return how long the device waits for the host before each op, in seconds, beside what it waits for exchanges.

    Args:
        duration_s: seconds of each op on the device, of one micro-batch and the update, in order.
        dispatch_s: seconds of the host for each op.
        exchanges: of divided operators.
        seconds: of each of these.
        launches_s: seconds of the host for each of these.
        unhidden: share of the shorter one of host and device, of each op, that the longer one does not hide.
    """
    launched, awaited = dict[int, list[int]](), dict[int, list[int]]()
    for number, one in enumerate(exchanges):
        launched.setdefault(one.after, []).append(number)
        for place in one.before:
            awaited.setdefault(place, []).append(number)
    delays_s, host_s, device_s, channel_s, due_s = list[float](), 0.0, 0.0, 0.0, 0.0
    ends_s, dues_s = dict[int, float](), dict[int, float]()

    def launch(after: int) -> None:
        nonlocal host_s, channel_s, due_s
        for number in launched.get(after, ()):
            host_s += launches_s[number]
            channel_s = ends_s[number] = max(host_s, device_s, channel_s) + seconds[number]
            due_s = dues_s[number] = max(device_s, due_s) + seconds[number]

    launch(START)
    for place, (op_s, own_s) in enumerate(zip(duration_s, dispatch_s, strict=True)):
        host_s += own_s
        start_s = max(host_s, device_s)
        free_s = device_s
        for number in awaited.get(place, ()):
            if number in ends_s:
                start_s, free_s = max(start_s, ends_s[number]), max(free_s, dues_s[number])
        unhidden_s = unhidden * min(own_s, op_s)
        delays_s.append(max(start_s - free_s, 0.0) * bool(place) + unhidden_s)
        host_s += unhidden_s
        device_s = start_s + unhidden_s + op_s
        if place in launched:
            launch(place)
    return delays_s
