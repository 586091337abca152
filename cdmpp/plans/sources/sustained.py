"""SustainedSource: kernels as a job runs them for hours, in which the power of the board holds its clock down.

Kernels were timed one at a time, so short that the board ran at its full clock. In a job the mean power of a step may
not exceed the board's limit: the clock falls until it does not, and products take longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cdmpp.devices import Device
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.source import RankWork, StepSource
from cdmpp.steps.derived import derived
from cdmpp.steps.step_graph import Op, RankGraph
from cdmpp.steps.strategy import Strategy

PRODUCTS, ATTENTION, IDLE = "products", "attention", "idle"
_CLASSES = {"dense": PRODUCTS, "conv2d": PRODUCTS, "matmul": ATTENTION}
_SHARE_OF_VOLTAGE = 0.6
"""Share of the voltage at the full clock that falls with the clock: voltage is a line over the clock, 0.4 of it at
none. No vendor publishes the line."""
_LOWEST = 0.2
"""Share of its full clock below which no board goes."""


@dataclass(frozen=True)
class Watts:
    """Power of a board at its full clock, by what it runs."""

    idle: float
    """While nothing runs."""
    memory: float
    """While a kernel moves bytes at the speed of the memory."""
    products: float
    """While matrix units multiply halves as fast as libraries do."""
    attention: float
    """While fused attention runs."""

    def of(self, kind: str) -> float:
        """Return the power while an op of a kind runs."""
        return {PRODUCTS: self.products, ATTENTION: self.attention, IDLE: self.idle}.get(kind, self.memory)


def _at_full_clock(idle: float, limit: float, full: float, sustained: float) -> float:
    """Power of products at the full clock, from operations a second at full clock and at the limit of the board."""
    clock = sustained / full
    return idle + (limit - idle) / (clock * _voltage(clock) ** 2)


def _voltage(clock: float) -> float:
    return 1 - _SHARE_OF_VOLTAGE + _SHARE_OF_VOLTAGE * clock


WATTS = {
    "sm_80": Watts(88.0, 275.0, _at_full_clock(88.0, 400.0, 295.0, 257.0), 370.0),
    "sm_90": Watts(100.0, 380.0, _at_full_clock(100.0, 700.0, 840.0, 720.0), 600.0),
}
"""Architecture -> power of its largest board.

A100: idle, and products of 8192 x 8192 x 8192 that reach 295 TFLOP/s on zeros and 257 on random numbers at 400 W
(H. He, "Strangely, matrix multiplications on GPUs run faster when given predictable data", 2024). H100: 720 TFLOP/s at
700 W on the shapes of a language model (SemiAnalysis, "MI300X vs H100 vs H200, training", 2024), and 840 at the full
clock, measured here call by call. Power of attention, and of kernels that move bytes: assumptions, nobody publishes it.
"""


class SustainedSource(StepSource):
    """Another source, whose products take as long as under the power limit of the board."""

    def __init__(self, nominal: StepSource, device: Device) -> None:
        """Take a source that times kernels one by one, and the device of each rank with its ``board_power_w``."""
        self.nominal, self.device = nominal, device
        self._works = dict[tuple[int, ParallelDegrees, tuple[Strategy, ...]], RankWork]()

    @property
    def of(self) -> str:
        """Return what its times are those of, for a reader."""
        return self.nominal.of

    def limits(self) -> Mapping[str, int]:
        """Return those of the source."""
        return self.nominal.limits()

    def prepare(
        self, batches: Iterable[int], degrees: Iterable[ParallelDegrees], strategies: Sequence[Strategy] = ()
    ) -> None:
        """Prepare the source."""
        self.nominal.prepare(batches, degrees, strategies)

    def work(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> RankWork:
        """Return the work of one rank at the clock that its board sustains; errors as of the source."""
        key = batch, degrees, tuple(strategies)
        if key not in self._works:
            work = self.nominal.work(*key)
            rank, told = sustained(work.rank, self.device)
            self._works[key] = replace(work, rank=rank, warnings=(*work.warnings, *told))
        return self._works[key]


def sustained(rank: RankGraph, device: Device) -> tuple[RankGraph, tuple[str, ...]]:
    """Return a rank at the clock that its board sustains, and a sentence about it where that is not the full one."""
    clock = sustained_clock(rank.ops, device)
    if clock == 1.0:
        return rank, ()
    ops = tuple(_slowed(op, clock) for op in rank.ops)
    limit = device.spec["board_power_w"]
    told = f"products run at {clock:.0%} of the full clock: a job would take more than the board's {limit:.0f} W"
    return derived(rank, ops=ops), (told,)


def sustained_clock(ops: Iterable[Op], device: Device) -> float:
    """Return the share of its full clock at which a board runs these ops again and again; 1 where nothing is known."""
    watts, limit = WATTS.get(device.architecture), device.spec["board_power_w"]
    if watts is None or limit is None:
        return 1.0
    seconds = dict.fromkeys((PRODUCTS, ATTENTION, IDLE, ""), 0.0)
    for op in ops:
        seconds[_CLASSES.get(op.kind, "")] += op.duration_s
        seconds[IDLE] += op.gap_s + op.delay_s

    def over(clock: float) -> float:
        """Joules beyond the limit."""
        joules = 0.0
        for kind, own_s in seconds.items():
            is_clocked = kind in (PRODUCTS, ATTENTION)
            taken_s = own_s / clock if is_clocked else own_s
            more = (watts.of(kind) - watts.idle) * own_s * (_voltage(clock) ** 2 if is_clocked else 1.0)
            joules += (watts.idle - limit) * taken_s + more
        return joules

    if over(1.0) <= 0:
        return 1.0
    if over(_LOWEST) >= 0:
        return _LOWEST
    from scipy.optimize import brentq  # a quarter of a second to import

    return float(brentq(over, _LOWEST, 1.0))


def _slowed(op: Op, clock: float) -> Op:
    return derived(op, duration_s=op.duration_s / clock) if op.kind in _CLASSES else op
