"""DDP: every rank has all parameters and sums gradients in buckets, as PyTorch's DistributedDataParallel does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from cdmpp.errors import CdmppError, some
from cdmpp.network.training_step import StepMemory
from cdmpp.plans.sizes import MIB, MOST_BYTES, mib, sizes
from cdmpp.plans.strategies.registry import STRATEGIES
from cdmpp.platform.limits import Limits, numbers
from cdmpp.steps.buckets import USED_ITEM_BYTES, buckets_of, initial_buckets
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.launches import Launches
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import COPY, Gradient, RankGraph, StepGraph
from cdmpp.steps.strategy import RankBytes, Strategy, flag
from cdmpp.steps.transforms.rebucket import gradient_exchanges, rebucket, used_map
from cdmpp.steps.transforms.view_gradients import view_gradients

DEFAULT_BUCKETS = (MIB, 25 * MIB)
"""PyTorch's: a small first bucket leaves early."""
_BUFFERS = 250 * MIB
_BUCKET_MIB = numbers(1 / MIB, MOST_BYTES / MIB, "MiB")


def _one_size(given: str) -> tuple[int, ...]:
    return (int(_BUCKET_MIB(given) * MIB),)


@STRATEGIES.register
@dataclass(frozen=True)
class DDP(Strategy):
    """Each bucket has one all-reduce, as soon as its last gradient is ready and the bucket before has left.

    Without ``overlap`` all buckets leave after the backward pass.
    """

    LIMITS = {"bucket_bytes": Limits(1, MOST_BYTES, "bytes")}
    name = "ddp"
    title = "data parallel"
    averages_by_hooks = True

    bucket_bytes: tuple[int, ...] = field(
        default=DEFAULT_BUCKETS,
        metadata=flag("--bucket-mb", _one_size, "MiB of a bucket of ddp (default: 25, the first one 1)"),
    )
    """A bucket is closed once it has so many bytes: the first, the next, and so on; the last number holds for all that
    follow."""
    gradient_as_bucket_view: bool = False
    """True if gradients lie in their buckets, so that they are not copied back."""
    find_unused_parameters: bool = False
    """True if each step looks for parameters without a gradient: buckets are never rebuilt, and ranks exchange a map of
    used parameters. ``static_graph=True`` undoes both."""
    forward_sync_buffers: bool = True
    """True if rank 0 broadcasts the buffers of the model, such as those of batch norms, before the forward pass; of
    several accumulated ones only before the first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.bucket_bytes:
            raise CdmppError("ddp.bucket_bytes is empty: expected the bytes of one bucket or more")

    @property
    def ends_backward(self) -> bool:
        """True: DistributedDataParallel waits for its buckets in the last hook of the backward pass."""
        return self.overlap

    def buckets(self, rank: RankGraph) -> list[list[Gradient]]:
        """Return the gradients of each bucket, in the order in which buckets leave.

        From the second step on (with ``static_graph`` the third) PyTorch fills buckets in the order in which gradients
        became ready on rank 0; the first step has one bucket. Of the gradients of one op those of later parameters come
        first. With ``find_unused_parameters`` buckets stay in the order of the model.
        """
        return buckets_of(rank, self.bucket_bytes, not self.find_unused_parameters)

    def exchanges(self, graph: StepGraph, sizes: Mapping[str, int] | None = None) -> tuple[Exchange, ...]:
        """List broadcasts of buffers, an all-reduce a bucket and that of the map of used parameters.

        ``CdmppError`` where gradients differ.
        """
        graph.check_alike()
        self._check_used(graph.ranks[0])
        ready = [{one.name: one.ready_after for one in rank.gradients} for rank in graph.ranks]
        last = [max(own.values(), default=0) for own in ready]
        found = self._broadcasts(graph) if self.forward_sync_buffers else []
        for number, bucket in enumerate(self.buckets(graph.ranks[0])):
            after = [max(own[one.name] for one in bucket) for own in ready] if self.overlap else last
            size = sum(one.bytes for one in bucket)
            found.append(Exchange("all_reduce", size, dict(enumerate(after)), name=f"bucket {number}"))
        if self.find_unused_parameters and graph.ranks[0].gradients:
            size = USED_ITEM_BYTES * len(graph.ranks[0].gradients)
            found.append(Exchange("all_reduce", size, dict(enumerate(last)), name="used parameters"))
        return tuple(found)

    def launches(self, graph: StepGraph, many: Sequence[Mapping[str, int]]) -> Launches:
        """List them once: numbers of ranks change nothing."""
        graph.check_alike()
        (rank,) = graph.ranks
        self._check_used(rank)
        found = Launches.of(self._broadcasts(graph) if self.forward_sync_buffers else (), len(many))
        last = max([one.ready_after for one in rank.gradients], default=0)
        buckets = self.buckets(rank)
        after = [max([one.ready_after for one in own]) if self.overlap else last for own in buckets]
        sizes = [sum([one.bytes for one in own]) for own in buckets]
        if self.find_unused_parameters and rank.gradients:
            after, sizes = [*after, last], [*sizes, USED_ITEM_BYTES * len(rank.gradients)]
        return found.then("all_reduce", after, np.repeat(np.array(sizes, np.int64)[:, np.newaxis], len(many), axis=1))

    def _check_used(self, rank: RankGraph) -> None:
        if not self.find_unused_parameters and (unused := [one.name for one in rank.gradients if not one.is_used]):
            raise CdmppError(
                f"ddp: the loss does not depend on {some(unused, ', ', 3)}, and DistributedDataParallel stops at the "
                "second step: freeze them, or give a plan whose strategy has find_unused_parameters: true"
            )

    def _broadcasts(self, graph: StepGraph) -> list[Exchange]:
        """One a data type and 250 MiB."""
        after = dict.fromkeys(range(len(graph.ranks)), START)
        before = {rank.rank: (0,) for rank in graph.ranks if rank.ops}
        return [
            Exchange("broadcast", sum(one.bytes for one in bucket), after, before, f"buffers {bucket[0].dtype}")
            for bucket in initial_buckets(graph.ranks[0].buffers, (_BUFFERS,))
        ]

    def pipeline_warnings(self, is_forward_first: bool) -> tuple[str, ...]:
        """Say where PyTorch 2.13 raises in the second step, when it rebuilds its buckets."""
        if not is_forward_first or self.find_unused_parameters:
            return ()
        return (
            "PyTorch's DistributedDataParallel fails in the second step where all forward passes of a stage come "
            "before its first backward pass: take 1f1b with more micro-batches than stages, or fsdp",
        )

    def rank_bytes(
        self, held: StepMemory, modules: Sequence[ModuleSpan], sizes: Mapping[str, int], batches: int = 1
    ) -> RankBytes:
        """Count a whole model, and on several ranks the buckets, which are as large as all gradients."""
        own = super().rank_bytes(held, modules, sizes, batches)
        if math.prod(sizes.values()) == 1:
            return own
        packed = max(held.gradient_bytes, sum(one.bytes for one in modules))  # those without a gradient too
        if self.gradient_as_bucket_view:
            return replace(own, gradient_bytes=packed, holds_gradients=True)
        return replace(own, bucket_bytes=packed)

    def apply(self, graph: StepGraph) -> StepGraph:
        """Give the step its exchanges; in a traced step its gradients are packed into other buckets."""
        if not graph.exchanges:
            return super().apply(graph)
        if self.find_unused_parameters != (used_map(graph) is not None):
            raise CdmppError("ddp.find_unused_parameters of a traced step cannot be changed")
        if not self.forward_sync_buffers and any(one.kind == "broadcast" for one in graph.exchanges):
            raise CdmppError("ddp.forward_sync_buffers of a traced step cannot be changed")
        return rebucket(view_gradients(graph) if self.gradient_as_bucket_view else graph, self.bucket_bytes)

    @classmethod
    def from_trace(cls, graph: StepGraph) -> Self:
        """Recognize the strategy of a traced step; ``CdmppError``: its all-reduces are not those of its gradients."""
        sent, finds_unused = _sent(graph), used_map(graph) is not None
        caps = (DEFAULT_BUCKETS, sent[::-1] if finds_unused else sent, *((size,) for size in sorted(set(sent))))
        made = {tried: _sent(rebucket(graph, tried)) for tried in caps}
        found = [tried for tried in made if made[tried] == sent]
        found += [tried for tried in made if sorted(made[tried]) == sorted(sent)]  # two left at once, either way round
        if not found:
            raise CdmppError(f"ddp: no bucket sizes pack the gradients into the traced {', '.join(map(str, sent))} B")
        return cls(
            bucket_bytes=found[0],
            gradient_as_bucket_view=not _copies_buckets(graph),
            find_unused_parameters=finds_unused,
        )

    def proposals(self, graph: StepGraph) -> Iterator[tuple[str, str, Iterable[Self]]]:
        """Propose sizes of all buckets, of the first one, and of later ones; gradients as views of their buckets."""
        ladder = sizes(graph.ranks[0].gradient_bytes)[::-1]  # of sizes that make the same buckets the largest is taken
        first, last = self.bucket_bytes[0], self.bucket_bytes[-1]
        caps = [DEFAULT_BUCKETS, *((size,) for size in ladder)]
        firsts = [(size, last) for size in ladder if size != last]
        rests = [(first, size) for size in ladder if size != first]
        for name, tried in (("bucket size", caps), ("first bucket", firsts), ("later buckets", rests)):
            yield name, "communication", [replace(self, bucket_bytes=one) for one in tried]
        if _copies_buckets(graph) and not self.gradient_as_bucket_view:
            yield "gradient as bucket view", "compute", [replace(self, gradient_as_bucket_view=True)]

    def memory_savers(self, ranks: int) -> Iterator[tuple[str, Self]]:
        """Propose gradients as views of their buckets, which are then held once."""
        if ranks > 1 and not self.gradient_as_bucket_view:
            yield "gradient as bucket view", replace(self, gradient_as_bucket_view=True)

    def describe(self, setting: str) -> str:
        """Describe one setting for a reader."""
        if setting == "bucket_bytes":
            first = f"first bucket {mib(self.bucket_bytes[0])} MiB, then " if len(self.bucket_bytes) > 1 else ""
            return f"{first}buckets of {mib(self.bucket_bytes[-1])} MiB"
        if setting == "gradient_as_bucket_view":
            lie = "in" if self.gradient_as_bucket_view else "next to"
            return f"gradients lie {lie} their buckets"
        if setting == "find_unused_parameters":
            return f"parameters without a gradient are {'' if self.find_unused_parameters else 'not '}looked for"
        if setting == "forward_sync_buffers":
            return f"buffers are {'' if self.forward_sync_buffers else 'not '}broadcast"
        return super().describe(setting)

    def torch_arguments(self) -> dict[str, Any]:
        """Return arguments of ``torch.nn.parallel.DistributedDataParallel``; empty where its defaults stay.

        Several sizes take ``bucket_cap_mb_list``, which torch 2.13 has.
        """
        found: dict[str, Any] = {}
        caps = [_number(size) for size in self.bucket_bytes]
        if self.bucket_bytes != DEFAULT_BUCKETS:
            found |= {"bucket_cap_mb": caps[0]} if len(caps) == 1 else {"bucket_cap_mb_list": caps}
        if self.gradient_as_bucket_view:
            found["gradient_as_bucket_view"] = True
        if self.find_unused_parameters:
            found["find_unused_parameters"] = True
        if not self.forward_sync_buffers:
            found["forward_sync_buffers"] = False
        return found

    def torch_lines(self, axes: str = "", optimizer: str = "torch.optim.AdamW") -> tuple[str, ...]:
        """Write the model in ``DistributedDataParallel``."""
        given = f", device_mesh={axes}" if axes else ""
        given += "".join(f", {key}={value!r}" for key, value in self.torch_arguments().items())
        return (f"model = DistributedDataParallel(model{given})",)


def _sent(graph: StepGraph) -> tuple[int, ...]:
    return tuple(graph.exchanges[place].bytes for place in gradient_exchanges(graph))


def _copies_buckets(graph: StepGraph) -> bool:
    """True if a traced step copies gradients back from their buckets."""
    return any(op.kind == COPY for rank in graph.ranks for op in rank.ops)


def _number(size: int) -> int | float:
    value = float(mib(size))
    return int(value) if value.is_integer() else value
