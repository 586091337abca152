"""Runtime: what runs a network, TVM's compiled programs or PyTorch's own kernels. Imports neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from cdmpp.devices import Device
from cdmpp.network.graph import NetworkGraph
from cdmpp.network.interval import NetworkErrors
from cdmpp.network.prediction import KernelPrediction
from cdmpp.network.training_step import TrainingStep
from cdmpp.network.workload import Workload
from cdmpp.simulate.timeline import Timeline

RUNTIMES = ("tvm", "torch")
"""Names of the compiled and of the eager runtime, as users give them."""
INDUCTOR = "torch-compile"
"""Name of the runtime of networks whose kernels Inductor fuses."""
NETWORK_RUNTIMES = (*RUNTIMES, INDUCTOR)
"""Names of all runtimes of networks, of training steps on one device and of plans; calls of operators have the first
two."""


@dataclass(frozen=True, kw_only=True)
class ReadNetwork:
    """These are the calls of one run of a workload, without their times."""

    graph: NetworkGraph
    batch: int
    """Examples in one run; 1 where that is not known."""
    warnings: tuple[str, ...] = ()
    """Differences from the requested run, a sentence each."""
    step: TrainingStep | None = None
    """The calls as those of a training step; None in the other modes."""
    precision: str = ""
    """Name of the precision of PyTorch's own kernels; empty where programs say their types."""
    alive_bytes: int | None = None
    """Most bytes of results alive at a time; None: each lives until its last reader has run."""
    tokens: int | None = None
    """Tokens that a language model reads, or makes, in one run; None: it is no such run."""
    cache_bytes: int = 0
    """Bytes of its cache of keys and values after the run."""


@dataclass(frozen=True, kw_only=True)
class PricedNetwork:
    """Each call of a network takes so long on one device, before they are launched."""

    read: ReadNetwork
    device: Device
    model: str
    """Name of the model that predicted the kernels."""
    schedule: str
    """Rule by which programs were chosen: ``best_of:16``, or that PyTorch's libraries choose them."""
    kernels: tuple[KernelPrediction, ...]
    """One a task, in the order in which the network calls them first."""
    call_s: Sequence[float]
    """(n calls) seconds of each call on the device, with what data outside its caches costs."""
    dispatch_s: Sequence[float] = ()
    """(n calls) seconds in which the host dispatches each call; empty where a program of the network does that."""
    errors: NetworkErrors = NetworkErrors({})
    """Errors on measured networks, of which intervals are made."""
    no_intervals: str = ""
    """The reason for which the sum has no interval; empty where it may have one."""
    by_datasheet: bool = False
    """True if the model knows the device only by its datasheet."""
    warnings: tuple[str, ...] = ()
    """Warnings to read before trusting these times, a sentence each."""


@dataclass(frozen=True)
class LaunchedNetwork:
    """The device runs the calls of a network in this order and on these queues."""

    timeline: Timeline
    overhead_s: float
    """Seconds of a run that its kernels do not take: launches and the framework."""
    warnings: tuple[str, ...] = ()


R = TypeVar("R", bound=ReadNetwork)


class Runtime(Protocol[R]):
    """Every runtime of networks answers a workload in these three steps; ``predict`` goes through them."""

    def read(self, workload: Workload, device: Device) -> R:
        """Read the calls of one run; ``CdmppError`` where the network cannot be read, or not in this mode."""
        ...

    def price(self, read: R, device: Device, progress: bool) -> PricedNetwork:
        """Price each call in seconds by the runtime's model; ``progress``: bars on stderr."""
        ...

    def launch(self, priced: PricedNetwork) -> LaunchedNetwork:
        """Launch the priced calls on the device."""
        ...
