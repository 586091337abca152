"""StageDevice: a device that may hold one stage, with what each layer takes on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import UsageError
from cdmpp.platform.limits import check_fields, numbers


@dataclass(frozen=True)
class HostCosts:
    """Seconds that the program which runs a stage takes from its device, whatever the layers."""

    LIMITS: ClassVar = {name: numbers(0, 3600, "seconds") for name in ("pass_s", "send_s", "receive_s", "update_s")}

    pass_s: float = 0.0
    """Seconds added to each forward and each backward pass."""
    send_s: float = 0.0
    """Behind each message that a stage sends while it computes. The message is under way meanwhile."""
    receive_s: float = 0.0
    """Before each pass that begins with a message, for each that it needs; also where it came while the stage
    computed."""
    update_s: float = 0.0
    """Seconds added to each update."""

    def __post_init__(self) -> None:
        check_fields(self, "host.")


@dataclass(frozen=True, eq=False)
class StageDevice:
    """Devices may differ in everything. Two with equal ``key`` are the same to a planner."""

    name: str
    forward_s: NDArray[np.float64]
    """Seconds of the forward pass of each layer for one micro-batch."""
    backward_s: NDArray[np.float64]
    """The same of the backward pass."""
    link: AlphaBeta
    """Its end of the links to all others."""
    update_s: float = 0.0
    """Seconds of the update of all parameters; a stage takes its share of them."""
    memory_bytes: float = math.inf
    copy_bytes_per_s: float = math.inf
    """Bytes a second that it copies inside its memory."""
    host: HostCosts = HostCosts()
    key: tuple[Any, ...] = field(init=False, repr=False)
    """Equal for devices between which nothing tells a difference."""

    def __post_init__(self) -> None:
        for what in ("forward_s", "backward_s"):
            values = np.asarray(getattr(self, what), np.float64)
            if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
                raise UsageError(f"{what} of device {self.name}: expected seconds from 0 up, one a layer")
            object.__setattr__(self, what, values)
        if len(self.forward_s) != len(self.backward_s):
            raise UsageError(f"device {self.name} has {len(self.forward_s)} forward and {len(self.backward_s)} "
                             "backward times: expected one of each a layer")  # fmt: skip
        if not self.memory_bytes > 0:
            raise UsageError(f"device {self.name} has {self.memory_bytes} bytes of memory: expected more than 0")
        key = (
            self.forward_s.tobytes(), self.backward_s.tobytes(), self.link, self.update_s, self.memory_bytes,
            self.copy_bytes_per_s, self.host,
        )  # fmt: skip
        object.__setattr__(self, "key", key)

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Return the seconds of both passes of each layer."""
        return self.forward_s + self.backward_s


def kinds_of(devices: Sequence[StageDevice]) -> tuple[tuple[StageDevice, ...], tuple[int, ...]]:
    """Return one device of each kind, in the order of the first ones, and how many there are of each."""
    found: dict[tuple[Any, ...], list[StageDevice]] = {}
    for one in devices:
        found.setdefault(one.key, []).append(one)
    return tuple(own[0] for own in found.values()), tuple(map(len, found.values()))


def pair_link(a: AlphaBeta, b: AlphaBeta) -> AlphaBeta:
    """Return what a message between two devices takes: both starts, and the bytes at the rate of the slower link."""
    return AlphaBeta(a.alpha_s + b.alpha_s, max(a.beta_s, b.beta_s))
