"""DataParallel: every rank has all parameters, and gradients are summed in buckets, as PyTorch's DDP does."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.errors import CdmppError
from cdmpp.steps.buckets import fill_buckets
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.step_graph import Gradient, RankGraph, StepGraph

FIRST_BUCKET_BYTES, BUCKET_BYTES = 2**20, 25 * 2**20
"""PyTorch's defaults: a small first bucket leaves early."""


@dataclass(frozen=True)
class DataParallel:
    """An all-reduce a bucket, as soon as its last gradient is there and the bucket before has left."""

    bucket_bytes: int | tuple[int, ...] | None = None
    """A bucket is closed once it has so many. None: PyTorch's defaults; a number holds for the first one too; of
    several the last holds for all that follow."""
    overlap: bool = True
    """False: all buckets leave after the backward pass."""

    name = "ddp"

    def __post_init__(self) -> None:
        if min(self.limits, default=0) < 1:
            raise CdmppError(f"buckets of {self.bucket_bytes} bytes: expected 1 or more")

    @property
    def limits(self) -> tuple[int, ...]:
        """Bytes that close the first bucket, the next, and so on."""
        if self.bucket_bytes is None:
            return FIRST_BUCKET_BYTES, BUCKET_BYTES
        return self.bucket_bytes if isinstance(self.bucket_bytes, tuple) else (self.bucket_bytes,)

    def shards(self, ranks: int) -> int:
        """Ranks over which parameters are cut."""
        return 1

    def buckets(self, rank: RankGraph) -> list[list[Gradient]]:
        """The buckets of a rank's gradients, in the order in which they leave.

        From the second step on PyTorch fills them in the order in which gradients became ready on rank 0; the first
        step has one bucket. Gradients of one operation: those of later parameters first.
        """
        places = {gradient.name: place for place, gradient in enumerate(rank.gradients)}
        ordered = sorted(rank.gradients, key=lambda one: (one.ready_after, -places[one.name]))
        return [[ordered[i] for i in bucket] for bucket in fill_buckets([one.bytes for one in ordered], self.limits)]

    def exchanges(self, graph: StepGraph) -> tuple[Exchange, ...]:
        """The exchanges of one step; ``CdmppError`` where ranks have other gradients than rank 0."""
        graph.check_alike()
        ready = [{one.name: one.ready_after for one in rank.gradients} for rank in graph.ranks]
        last = [max(own.values(), default=0) for own in ready]
        found = []
        for number, bucket in enumerate(self.buckets(graph.ranks[0])):
            after = [max(own[one.name] for one in bucket) for own in ready] if self.overlap else last
            size = sum(one.bytes for one in bucket)
            found.append(Exchange("all_reduce", size, dict(enumerate(after)), name=f"bucket {number}"))
        return tuple(found)
