"""Memory: the most bytes that a rank holds at a time under a plan, estimated from what kernels read and write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np

from cdmpp.network.training_step import StepMemory
from cdmpp.plans.allocator import CONTEXT, PARTLY_FILLED, taken_bytes
from cdmpp.plans.communicators import communicator_bytes
from cdmpp.plans.host_bytes import on_device
from cdmpp.plans.live_bytes import Bytes, LiveBytes, RunOrder
from cdmpp.plans.op_bytes import OpBytes
from cdmpp.plans.plan import PARAMETERS, Plan
from cdmpp.plans.shared_parameters import rank_bytes_of
from cdmpp.steps.step_graph import RankGraph
from cdmpp.steps.strategy import RankBytes


@dataclass(frozen=True)
class MemoryParts:
    """These bytes a rank holds at the moment at which it holds most; their sum is the peak."""

    parameters: Bytes = 0
    gradients: Bytes = 0
    optimizer: Bytes = 0
    """States that the optimizer keeps."""
    buffers: Bytes = 0
    """Buffers of the model, as of batch norms."""
    inputs: Bytes = 0
    activations: Bytes = 0
    """Results of the passes: saved ones of all micro-batches in flight, workspace of the one that runs, logits."""
    communication: Bytes = 0
    """Buckets, gathered parameters, gradients under way, and what neighbours in a pipeline send."""
    workspace: Bytes = 0
    """Bytes that the update needs for itself."""
    rounding: Bytes = 0
    """Bytes that the allocator takes on top."""
    context: Bytes = 0
    """Bytes that the framework holds before the first tensor."""
    communicators: Bytes = 0
    """Bytes that the library of the collectives holds for itself."""

    @property
    def peak_bytes(self) -> Bytes:
        """Sum all parts."""
        return sum(getattr(self, one.name) for one in fields(self))

    @property
    def by_size(self) -> dict[str, int]:
        """Map the parts of one plan that hold anything to their bytes, most first."""
        found = {one.name: int(getattr(self, one.name)) for one in fields(self)}
        return dict(sorted(((name, size) for name, size in found.items() if size), key=lambda pair: -pair[1]))

    @property
    def largest(self) -> str:
        """Name the part with most bytes, of one plan."""
        return next(iter(self.by_size), "parameters")


def peak_parts(
    held: StepMemory,
    own: RankBytes,
    live: LiveBytes,
    micro_batches: Bytes = 1,
    in_flight: Bytes = 1,
    batches: Bytes = 1,
    received: Bytes = 0,
    returned: Bytes = 0,
    kept: Bytes = 0,
    waiting: Bytes | None = None,
) -> MemoryParts:
    """Return what a rank holds at its peak, by closed form; every number may be an array over plans.

    The peak is in the passes, where outputs are put together, or in the update. In the passes all but one of the
    micro-batches in flight hold what they saved. That is the peak of the timeline where some micro-batch ends its
    backward pass before as many are in flight for the last time, as under 1F1B with more micro-batches than stages;
    else the sum counts all gradients of a first micro-batch that are not there yet, and is above the timeline by at
    most the rank's gradients. Where a rank keeps a share of its gradients, results and gradients are at most as many as
    two bounds say: the most results, with all that passes and the share; and results with whole gradients, with the
    share.

    Outputs that are returned live from their forward pass to the next step, those of all micro-batches; after the
    passes they are copied into one. What the caller keeps of that is not counted.

    Args:
        held: what the rank would hold if it were the only one of its stage.
        own: what it holds of that under its strategy.
        live: results of one micro-batch.
        micro_batches: micro-batches of a pipeline, whose inputs are all there.
        in_flight: micro-batches that have begun their forward pass and not ended their backward pass: as many as there
            are for GPipe, ``min(micro_batches, stages - stage)`` for 1F1B with stages from 0 up.
        batches: gradient accumulation steps.
        received: bytes that neighbours in a pipeline send for one micro-batch; PyTorch has buffers for each.
        returned: bytes of gradients that go to the stage before; those of one micro-batch are there until the next
            one has its own.
        kept: micro-batches whose outputs are returned: all on the last stage, else 0.
        waiting: bytes of results that are alive next to those of one micro-batch, at most; None: what ``in_flight`` and
            ``kept`` make of them.
    """
    if waiting is None:
        waiting = np.subtract(in_flight, 1) * live.saved + np.maximum(np.subtract(kept, in_flight), 0) * live.outputs
    adds_up = np.logical_or(own.holds_gradients, np.multiply(micro_batches, batches) > 1)
    # the passes make gradients of the weights' type, and a rank may keep its share in a wider one
    made = np.where(np.greater(live.gradients, 0), np.minimum(live.gradients, held.gradient_bytes), held.gradient_bytes)
    share = np.minimum(own.gradient_bytes / np.maximum(made, 1), 1)
    most = np.minimum(
        live.passes + share * (live.with_gradients - live.passes) + own.passing_bytes,
        live.with_gradients + np.where(np.greater(own.passing_bytes, 0), own.gradient_bytes, 0),
    )
    gradients = np.where(
        adds_up, own.gradient_bytes + own.passing_bytes, np.maximum(most - live.passes, share * live.gradients)
    )
    alive = waiting + np.where(adds_up, live.passes, most - gradients)
    outputs = np.multiply(kept, live.outputs)
    copied = np.where(outputs > own.update_bytes, outputs, 0)
    workspace = np.where(copied, 0, own.update_bytes)
    in_passes = gradients + alive + own.gathered_bytes >= own.gradient_bytes + outputs + copied + workspace
    return MemoryParts(
        own.parameter_bytes,
        np.where(in_passes, gradients, own.gradient_bytes),
        own.state_bytes,
        held.buffer_bytes,
        np.multiply(held.input_bytes, micro_batches),
        np.where(in_passes, alive, outputs + copied),
        own.bucket_bytes
        + np.multiply(received, micro_batches)
        + returned * np.greater(micro_batches, 1)
        + np.where(in_passes, own.gathered_bytes, 0),
        np.where(in_passes, 0, workspace),
    )


@dataclass(frozen=True)
class Memory:
    """One rank holds so many bytes by itself; those that it holds under a plan follow from them."""

    held: StepMemory
    rank: RankGraph
    """The rank's ops of one micro-batch with the bytes they write and read, its gradients and modules."""
    is_gpu: bool = False
    """True if PyTorch's caching allocator and the context of a GPU count."""
    outputs: tuple[int, ...] = ()
    """Places of the ops whose results a stage of a pipeline hands on."""
    pending: tuple[int, ...] = ()
    """Places of the ops whose results wait between the two parts of a divided backward pass."""
    sizes: OpBytes | None = None
    """Bytes of other micro-batches, which run the same ops; None: those of ``rank``. What is alive is then an array."""
    _live: dict[tuple[tuple[str, ...], bool], LiveBytes] = field(default_factory=dict, compare=False, repr=False)
    _orders: dict[tuple[str, ...], RunOrder] = field(default_factory=dict, compare=False, repr=False)

    def live(self, recomputed: tuple[str, ...] = (), is_taken: bool = False) -> LiveBytes:
        """Return the results alive in the passes, without those of the update, which writes in place.

        A result lives until its last reader has run. Inside a module that is recomputed it lives twice: until its last
        reader in the forward pass, and from the second run on.

        Args:
            recomputed: names of modules.
            is_taken: whether bytes are those that the allocator takes.
        """
        if (key := (recomputed, is_taken)) not in self._live:
            found = self._found(recomputed, self.outputs, is_taken)
            unmade = self._unmade_bytes
            made = replace(found, with_gradients=found.with_gradients + unmade, gradients=found.gradients + unmade)
            self._live[key] = made
        return self._live[key]

    def parts(
        self,
        plan: Plan,
        micro_batches: int = 1,
        in_flight: int = 1,
        received_bytes: int = 0,
        returned_bytes: int = 0,
        kept: int = 0,
    ) -> MemoryParts:
        """Return what the rank holds at its peak under a plan, as ``peak_parts`` does."""
        batches = plan.gradient_accumulation_steps
        own = self.rank_bytes(plan, micro_batches * batches, micro_batches > 1)
        schedule = micro_batches, in_flight, batches, received_bytes, returned_bytes, kept
        found = peak_parts(self.held, own, self.live(plan.recompute), *schedule)
        if self.is_gpu:
            taken = peak_parts(self.held, own, self.live(plan.recompute, is_taken=True), *schedule)
            rounding = taken.peak_bytes - found.peak_bytes + self.rounded_bytes(own)
            nccl = communicator_bytes(plan.degrees.beyond_one())
            found = replace(found, rounding=rounding, context=CONTEXT, communicators=nccl)
        return MemoryParts(*(int(getattr(found, one.name)) for one in fields(found)))

    def by_kind(self, recomputed: tuple[str, ...], kinds: Sequence[str]) -> dict[str, LiveBytes]:
        """Divide ``live`` by the kind of each op, as ``RunOrder.by_kind`` does."""
        self.live(recomputed)
        return self._orders[recomputed].by_kind(self._sizes, self.outputs, kinds)

    def rank_bytes(self, plan: Plan, batches: int, is_piped: bool) -> RankBytes:
        """Return what the rank holds under the plan's strategy, as ``Strategy.rank_bytes`` does."""
        sizes = {name: getattr(plan.degrees, name) for name in plan.replicating}
        strategy = plan.strategy.in_pipeline() if is_piped else plan.strategy
        found = rank_bytes_of(strategy, self.held, self.rank, sizes, batches)
        return on_device(found, self.rank.modules) if PARAMETERS in plan.offload else found

    def rounded_bytes(self, own: RankBytes) -> int:
        """Return what the allocator of a GPU takes on top for what does not change from pass to pass."""
        return rounded_bytes(self.held, Counter(one.bytes for one in self.rank.gradients), own)

    def peak_bytes(self, plan: Plan) -> int:
        """Return the sum of the parts at the peak."""
        return int(self.parts(plan).peak_bytes)

    @cached_property
    def _unmade_bytes(self) -> Bytes:
        """Bytes of gradients that no call writes, where the backward pass is a ratio of the forward pass."""
        known = self.held.live_bytes
        if not np.any(known):
            return 0
        return np.where(known, np.maximum(known - self._found((), (), False).with_gradients, 0), 0)

    def _found(self, recomputed: tuple[str, ...], outputs: tuple[int, ...], is_taken: bool) -> LiveBytes:
        if recomputed not in self._orders:
            self._orders[recomputed] = RunOrder.of(self.rank, recomputed)
        return self._orders[recomputed].live(self._sizes, outputs, is_taken, self.pending)

    @cached_property
    def _sizes(self) -> OpBytes:
        return self.sizes or OpBytes.of(self.rank.ops)

    def sized(self, held: StepMemory, sizes: OpBytes) -> Memory:
        """Return the memory of other micro-batches: they run ops that are the same but for their bytes."""
        return replace(self, held=held, sizes=sizes, _live={})


def rounded_bytes(held: StepMemory, gradients: Mapping[int, int], own: RankBytes) -> int:
    """Count what the allocator of a GPU takes on top for parameters, states and gradients, and in its first blocks.

    Args:
        held: what a rank would hold if it were the only one of its stage.
        gradients: bytes of a gradient of the stage -> how many have as many.
        own: what the rank holds under its strategy.
    """
    share = own.parameter_bytes / (held.parameter_bytes or 1)
    copies = 1 + own.holds_gradients + round(held.state_bytes / (held.gradient_bytes or 1))
    sizes = np.array([round(size * share) for size in gradients], np.int64)
    return PARTLY_FILLED + copies * int((taken_bytes(sizes) - sizes) @ np.array([*gradients.values()], np.int64))
