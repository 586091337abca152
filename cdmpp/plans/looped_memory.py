"""What a rank with several stages holds: the sum over its stages, followed through the order of its schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from cdmpp.network.training_step import StepMemory
from cdmpp.plans.live_bytes import Bytes, LiveBytes
from cdmpp.plans.memory import MemoryParts, peak_parts
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.strategy import RankBytes

AnyBytes = TypeVar("AnyBytes", StepMemory, RankBytes)


def looped_parts(
    order: LoopedSchedule, rank: int, ranks: int, micro_batches: int, kept: int,
    held: StepMemory, own: RankBytes, live: LiveBytes, received: Bytes, returned: Bytes,
) -> MemoryParts:  # fmt: skip
    """Return what a rank holds at its peak, as ``peak_parts`` does; the last axis of arrays is over its stages.

    A micro-batch of a stage holds what its forward pass saved until its backward pass ends. Where that is divided, all
    of it stays to the end of the second part: autograd keeps the graph, and gradients that weights need wait next to
    it.

    Args:
        order: the schedule.
        rank: the rank among those of the pipeline.
        ranks: of the pipeline.
        micro_batches: of the step.
        kept: micro-batches whose outputs the last stage returns.
        held: what each stage would hold if it were the only one of its number.
        own: what the rank holds of that under its strategy.
        live: results of one micro-batch.
        received: bytes that neighbours of each stage send for one micro-batch.
        returned: bytes of gradients that each stage sends to the one before.
    """
    stages = order.stages_of(rank, ranks)
    is_last = stages[-1] == ranks * order.stages_per_rank - 1
    most = np.maximum.reduce(
        [
            _alive(live, *one, kept if is_last else 0)
            for one in order.lists(ranks, order.alike(ranks, micro_batches)).moments(rank)
        ]
    )
    nothing = np.zeros_like(most)
    outputs = live.outputs[..., -1] if is_last else nothing
    return peak_parts(
        _sum(held), _sum(own), LiveBytes(nothing, nothing, nothing, nothing, outputs), micro_batches, 1,
        2,  # gradients of several stages have places of their own
        np.sum(received, axis=-1), np.sum(returned, axis=-1), kept if is_last else 0, most,
    )  # fmt: skip


def _alive(live: LiveBytes, running: int, saved: Sequence[int], pending: Sequence[int], kept: int) -> Any:
    """Bytes of results at one moment."""
    found = (live.saved * np.array(saved)).sum(axis=-1) + (live.pending * np.array(pending)).sum(axis=-1)
    in_flight = saved[-1] + (running == len(saved) - 1)
    return found + live.passes[..., running] + max(kept - in_flight, 0) * live.outputs[..., -1]


def _sum(given: AnyBytes) -> AnyBytes:
    """Sum each number over the last axis."""
    values: dict[str, Any] = {one.name: np.sum(getattr(given, one.name), axis=-1) for one in fields(given)}
    return replace(given, **values)
