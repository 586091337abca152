"""SustainedSource: kernels as a job runs them for hours, in which the power of the board holds its clock down.

Kernels were timed one at a time, so short that the board ran at its full clock. In a job the power may not exceed the
board's limit: while products run that take more, the clock falls until they do not. The limit is taken to act within a
kernel, as a published speed of one product that is repeated says; kernels that take less leave nothing over for others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cdmpp.devices import Device
from cdmpp.errors import CdmppError
from cdmpp.network.precision import Precision, precision_of
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.source import BehindSource, RankWork, StepSource, StepTimes
from cdmpp.steps.derived import derived
from cdmpp.steps.step_graph import RankGraph
from cdmpp.steps.strategy import Strategy

PRODUCTS, ATTENTION = "products", "attention"
CLOCKED = {"dense": PRODUCTS, "conv2d": PRODUCTS, "matmul": ATTENTION}
"""Kind of an op that follows the clock -> what it is."""
_SHARE_OF_VOLTAGE = 0.6
"""Share of the voltage at the full clock that falls with the clock: voltage is a line over the clock, 0.4 of it at
none. No vendor publishes the line."""
_LOWEST, _HALVINGS = 0.1, 40
"""Share of its full clock below which no board goes; steps to find the clock."""


@dataclass(frozen=True)
class Watts:
    """Power of a board at its full clock, by what it runs."""

    idle: float
    """While nothing runs."""
    products: float
    """While matrix units multiply halves as fast as libraries do."""
    attention: float
    """While the kernel of fused attention runs that PyTorch takes there by default."""
    flash: float
    """While FlashAttention-2 runs."""


def _at_full_clock(idle: float, limit: float, full: float, sustained: float) -> float:
    """Power of products at the full clock, from operations a second at full clock and at the limit of the board."""
    clock = sustained / full
    return idle + (limit - idle) / (clock * _voltage(clock) ** 2)


def _voltage(clock: float) -> float:
    return 1 - _SHARE_OF_VOLTAGE + _SHARE_OF_VOLTAGE * clock


def _of_speed(idle: float, products: float, share: float) -> float:
    """Power of a kernel that multiplies at a share of the speed of products: an operation takes as much energy."""
    return idle + (products - idle) * share


_H100_W = _at_full_clock(100.0, 700.0, 840.0, 720.0)
WATTS = {
    "sm_80": Watts(88.0, _at_full_clock(88.0, 400.0, 295.0, 257.0), 370.0, 370.0),
    "sm_90": Watts(100.0, _H100_W, 600.0, _of_speed(100.0, _H100_W, 335 / 840)),
}
"""Architecture -> power of its largest board.

A100: idle, and products of 8192 x 8192 x 8192 that reach 295 TFLOP/s on zeros and 257 on random numbers at 400 W
(H. He, "Strangely, matrix multiplications on GPUs run faster when given predictable data", 2024). H100: 720 TFLOP/s at
700 W on the shapes of a language model (SemiAnalysis, "MI300X vs H100 vs H200, training", 2024), and 840 at the full
clock, measured here call by call. The power of attention is an assumption: nobody publishes it. FlashAttention-2 makes
335 TFLOP/s on an H100 (``conf/attention/published.yaml``).
"""


class SustainedSource(BehindSource):
    """Another source, whose products take as long as under the power limit of the board."""

    def __init__(
        self,
        nominal: StepSource,
        device: Device,
        precision: Precision | str,
        attention: str = "auto",
        power_limit_w: float | None = None,
    ) -> None:
        """Take a source that times kernels one by one, at the full clock.

        Args:
            nominal: the source.
            device: that of each rank.
            precision: the types that it computes in.
            attention: the kernel that was asked for, as ``Workload.attention`` names it.
            power_limit_w: watts to which somebody limits the board; None: its own limit.

        ``CdmppError``: a limit that it cannot have, or of which nothing is known.
        """
        self.nominal, self.precision, self.attention = nominal, precision_of(precision), attention
        self.device = device if power_limit_w is None else _limited(device, self.precision, power_limit_w)
        self._works = dict[tuple[int, ParallelDegrees, tuple[Strategy, ...]], RankWork]()

    def work(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> RankWork:
        """Return the work of one rank at the clock that its board sustains; errors as of the source."""
        key = batch, degrees, tuple(strategies)
        if key not in self._works:
            work = self.nominal.work(*key)
            rank, told = sustained(work.rank, self.device, self.precision, self.attention)
            self._works[key] = replace(work, rank=rank, warnings=(*work.warnings, *told))
        return self._works[key]

    def times(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> StepTimes | None:
        """Return the times of ``work`` from those of the source, whose ops begin as soon as they can."""
        found = self.nominal.times(batch, degrees, strategies)
        clocks = _clocks(self.device, self.precision, self.attention)
        if found is None or not clocks.keys() & set(found.kinds):
            return found
        shares = np.array([clocks.get(kind, 1.0) for kind in found.kinds])
        return replace(found, seconds=(found.seconds - found.gaps_s) / shares + found.gaps_s)


def _limited(device: Device, precision: Precision, limit_w: float) -> Device:
    """Return a device whose board somebody limits to so many watts; kernels one by one take as long as without."""
    watts, own = WATTS.get(device.architecture), device.spec["board_power_w"]
    if watts is None or own is None:
        known = ", ".join(WATTS)
        raise CdmppError(f"power limit of {device.name}: the power of kernels is known of {known}: leave it out")
    if precision.products == "float32":
        raise CdmppError("power limit: nobody published the power of products in float32: take halves, or leave it out")
    if not watts.idle < limit_w <= own:
        raise CdmppError(
            f"power limit of {device.name}: {limit_w:g} W; it takes {watts.idle:g} W while idle, and at most {own:g} W"
        )
    return device.with_spec(board_power_w=limit_w)


def _clocks(device: Device, precision: Precision, attention: str) -> Mapping[str, float]:
    """Kind of an op that runs below the full clock -> its share of that."""
    if precision.products == "float32":
        return {}
    found = {kind: sustained_clock(what, device, attention) for kind, what in CLOCKED.items()}
    return {kind: clock for kind, clock in found.items() if clock < 1}


def sustained(
    rank: RankGraph, device: Device, precision: Precision, attention: str = "auto"
) -> tuple[RankGraph, tuple[str, ...]]:
    """Return a rank at the clock that its board sustains, and a sentence about it where that is not the full one.

    Products that do not run on matrix units keep their time: their power was published nowhere.
    """
    clocks = _clocks(device, precision, attention)
    slowest = min((clocks[op.kind] for op in rank.ops if op.kind in clocks), default=1.0)
    if slowest == 1.0:
        return rank, ()
    ops = tuple(derived(op, duration_s=op.duration_s / clocks[op.kind]) if op.kind in clocks else op for op in rank.ops)
    limit = device.spec["board_power_w"]
    told = f"products run at {slowest:.0%} of the full clock: a job would take more than the board's {limit:.0f} W"
    return derived(rank, ops=ops), (told,)


def sustained_clock(what: str, device: Device, attention: str = "auto") -> float:
    """Return the share of its full clock at which a board runs kernels again and again; 1 where nothing is known.

    Args:
        what: ``PRODUCTS`` or ``ATTENTION``.
        device: with its ``board_power_w``.
        attention: the kernel of attention that was asked for.
    """
    watts, limit = WATTS.get(device.architecture), device.spec["board_power_w"]
    if watts is None or limit is None:
        return 1.0
    of_attention = watts.flash if attention == "flash" else watts.attention
    own, left = (watts.products if what == PRODUCTS else of_attention) - watts.idle, limit - watts.idle
    if own <= left:
        return 1.0
    low, high = _LOWEST, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if own * middle * _voltage(middle) ** 2 <= left else (low, middle)
    return low
