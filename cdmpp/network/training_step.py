"""TrainingStep: forward pass, backward pass and update of a network as calls of tensor programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from cdmpp.network.graph import Call, NetworkGraph
from cdmpp.platform.limits import Limits, fitting

PHASES = ("forward", "backward", "update")
ONE_DEVICE = (
    "under torch.compile DistributedDataParallel cuts graphs at its buckets and FSDP compiles block by block, which is "
    "not read: steps of --runtime torch-compile are of one device"
)
"""Reason to refuse a step that ``torch.compile`` runs on several devices."""


@dataclass(frozen=True)
class StepCall:
    """This is a kernel launch of a training step."""

    call: Call
    """The call, with its task id, what it reads, and the bytes that it writes."""
    phase: str
    """One of ``PHASES``."""
    is_recomputed: bool = False
    """True if it runs a call of the forward pass again, as ``torch.utils.checkpoint`` does it in the backward pass."""


@dataclass(frozen=True)
class StepParameter:
    """The step trains this parameter, or would if the loss depended on it."""

    name: str
    """Name that the model gives it."""
    bytes: int
    """Bytes of the parameter as the passes read it."""
    ready: int
    """Place of the call that makes its gradient; of the first backward call where it is unused."""
    number: int | None = None
    """Number in ``Call.resident``; None: no call reads it, or nothing says which one it is."""
    rows: int = 1
    """Length of its first dimension, along which FSDP2 divides it; 0 for a number, which has none."""
    is_used: bool = True
    """False if the loss does not depend on it: it has no gradient. DistributedDataParallel packs it all the same."""
    apart: tuple[str, ...] = ()
    """Parallel degrees along which ranks have batches of their own, and other parameters under this name."""
    columns: int = 0
    """Length of its second dimension, along which FSDP divides experts of which ranks have few; 0: it has none."""
    meshes: tuple[str, ...] = ()
    """Parallel degrees that divide operators and along which the framework has it as one tensor, a ``DTensor``."""
    reduced_bytes: int | None = None
    """Bytes of its gradient as it is reduced; None: as many as those of the parameter."""

    @property
    def gradient_bytes(self) -> int:
        """Its gradient has so many bytes as ranks reduce it."""
        return self.bytes if self.reduced_bytes is None else self.reduced_bytes


@dataclass(frozen=True)
class StepBuffer:
    """The model keeps this tensor and does not train it, such as a running mean."""

    bytes: int
    dtype: str

    def __post_init__(self) -> None:
        fitting("bytes of a buffer", self.bytes, int, Limits(0, 2**53))
        fitting("dtype of a buffer", self.dtype, str)


@dataclass(frozen=True)
class StepMemory:
    """A step holds this memory, in bytes."""

    parameter_bytes: int
    """Bytes of all parameters, also of those that are not trained."""
    gradient_bytes: int
    state_bytes: int
    """Bytes that the optimizer keeps from step to step."""
    buffer_bytes: int
    """Statistics of batch norms and what else the model keeps."""
    input_bytes: int
    """Examples and targets."""
    saved_activation_bytes: int
    """Results of the forward pass that the backward pass reads; a view counts as what it is a view of."""
    live_bytes: int
    """Most bytes of results alive at a time before the update: saved activations, gradients so far, workspace."""
    update_bytes: int = 0
    """Bytes that the update holds in addition to gradients and states while it writes in place."""

    @property
    def peak_bytes(self) -> int:
        """This sums parameters, states, buffers, inputs, and the most bytes of results alive at a time.

        The update writes in place, so new parameters and states are not counted again.
        """
        alive = max(self.live_bytes, self.gradient_bytes + self.update_bytes)
        return self.parameter_bytes + self.state_bytes + self.buffer_bytes + self.input_bytes + alive


@dataclass(frozen=True)
class TrainingStep:
    """This is one step of one rank, on no device yet."""

    graph: NetworkGraph
    """All calls in order, as replay and prediction take it. Nothing is folded: every parameter changes at each step."""
    calls: tuple[StepCall, ...]
    """The calls of the graph, with what they mean to the step."""
    parameters: tuple[StepParameter, ...]
    """In the order of the model."""
    batch: int
    """Examples in one step; 1 where that is not known."""
    optimizer: str
    """``none``: no update."""
    memory: StepMemory
    buffers: tuple[StepBuffer, ...] = ()
    """Buffers of the model, in its order."""
    warnings: tuple[str, ...] = ()
    """Differences from the requested step, a sentence each."""
    scaled: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """Task id -> the task that it takes so many times as long as; empty unless the backward pass is a ratio."""
    is_compiled: bool = False
    """True if ``torch.compile`` makes one graph each of its forward and its backward pass."""
    frozen: tuple[StepParameter, ...] = ()
    """Parameters that are not trained, in the order of the model: they have no gradient, and FSDP gathers them too."""

    @property
    def saved_activation_bytes(self) -> int:
        """Results of so many bytes live from the forward into the backward pass, without parameters and inputs."""
        return self.memory.saved_activation_bytes

    @property
    def peak_bytes(self) -> int:
        """So many bytes at most must be held at a time."""
        return self.memory.peak_bytes

    @property
    def is_ratio(self) -> bool:
        """Return True if the backward pass is no graph of its own, but a measured ratio of the forward pass."""
        return bool(self.scaled)

    @cached_property
    def order(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """These are the phase of each call, and the places of those that it reads from."""
        return tuple([(one.phase, one.call.inputs) for one in self.calls])

    @property
    def counts(self) -> dict[str, int]:
        """Each phase has so many calls."""
        return {phase: sum(call.phase == phase for call in self.calls) for phase in PHASES}

    @property
    def recomputed(self) -> tuple[StepCall, ...]:
        """These calls of the backward pass run one of the forward pass again."""
        return tuple(call for call in self.calls if call.is_recomputed)

    @property
    def ready_order(self) -> tuple[str, ...]:
        """These are names of parameters in the order in which their gradients become ready."""
        used = (one for one in self.parameters if one.is_used)
        return tuple(one.name for one in sorted(used, key=lambda one: one.ready))
