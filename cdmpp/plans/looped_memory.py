"""Memory of ranks with several stages: the sum over their stages, followed through the order of the schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from cdmpp.network.training_step import StepMemory
from cdmpp.plans.live_bytes import Bytes, LiveBytes
from cdmpp.plans.memory import MemoryParts, peak_parts
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.native import most_bytes
from cdmpp.steps.strategy import IntArray, RankBytes

AnyBytes = TypeVar("AnyBytes", StepMemory, RankBytes)


def looped_parts(
    order: LoopedSchedule, ranks: int, micro_batches: IntArray, kept: IntArray, held: StepMemory, own: RankBytes,
    live: LiveBytes, received: Bytes, returned: Bytes,
) -> MemoryParts:  # fmt: skip
    """Return what all ranks hold at their peaks, as ``peak_parts`` does, (plans, ranks).

    A micro-batch of a stage holds what its forward pass saved until its backward pass ends. Where that is divided, all
    of it stays to the end of the second part: autograd keeps the graph, and gradients that weights need wait next to
    it.

    Args:
        order: the schedule.
        ranks: of the pipeline.
        micro_batches: of the step of each plan.
        kept: micro-batches whose outputs the last stage returns, of each plan.
        held: what each stage would hold if it were the only one of its number; arrays are (plans, stages), as all here.
        own: what its rank holds of that under its strategy.
        live: results of one micro-batch.
        received: bytes that neighbours of each stage send for one micro-batch.
        returned: bytes of gradients that each stage sends to the one before.
    """

    def of_ranks(values: Bytes) -> Bytes:
        return order.of_ranks(values, ranks)

    names = ("saved", "pending", "passes", "outputs")
    alive = np.stack(np.broadcast_arrays(*(getattr(live, name) for name in names)), axis=-1)
    most = np.empty((len(micro_batches), ranks))
    for many, keeping in sorted({*zip(micro_batches.tolist(), kept.tolist(), strict=True)}):
        rows = np.flatnonzero((micro_batches == many) & (kept == keeping))
        most[rows] = most_bytes(order.lists(ranks, order.alike(ranks, many)), alive[rows], keeping)
    nothing, is_last = np.zeros_like(most), np.arange(ranks) == order.rank_of(ranks * order.stages_per_rank - 1, ranks)
    outputs = np.where(is_last, alive[:, -1:, -1], 0)
    return peak_parts(
        _each(of_ranks, held), _each(of_ranks, own), LiveBytes(nothing, nothing, nothing, nothing, outputs),
        micro_batches[:, np.newaxis], 1,
        2,  # gradients of several stages have places of their own
        of_ranks(received), of_ranks(returned), kept[:, np.newaxis] * is_last, most,
    )  # fmt: skip


def _each(made: Callable[[Bytes], Bytes], given: AnyBytes) -> AnyBytes:
    """Make new numbers of all."""
    values: dict[str, Any] = {one.name: made(getattr(given, one.name)) for one in fields(given)}
    return replace(given, **values)
