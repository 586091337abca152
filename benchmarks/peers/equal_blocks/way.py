"""Way: how ranks run one block, and what it costs them. Every plan of a search runs its blocks in one of some ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cdmpp.plans.overlap import Floats

NONE, ATTENTION, FULL = RECOMPUTED = ("none", "attention", "full")
"""What runs again in the backward pass: nothing, the attention between its four products with weights, or all."""
SUMMED, SCATTERED, SEQUENCE = EXCHANGES = ("all_reduce", "scattered messages", "sequence")
"""How ranks that divide a block exchange its results: each has all of them (all-reduce); so too, but each sends a part
to the next stage, which gathers them; each has a part of the sequence (reduce-scatter and all-gather)."""
OVERLAPS = ("none", "ring", "pipe")
"""Whether the products around an exchange are divided so that it hides behind them: in a ring, or tile by tile."""


@dataclass(frozen=True)
class Way:
    """These settings are those of a plan that decide what a block takes."""

    micro_batch: int
    """Examples of one pass."""
    recompute: str = NONE
    """One of ``RECOMPUTED``."""
    exchange: str = SUMMED
    """One of ``EXCHANGES``."""
    gathers_again: bool = False
    """True if the backward pass gathers inputs of products once more, so that a rank keeps its part of them only."""
    overlap: str = "none"
    """One of ``OVERLAPS``."""
    tier: int = 0
    """Number of the network of these exchanges."""


def ways(tp: int, micro_batches: Sequence[int], tiers: int) -> Iterator[Way]:
    """Yield every way in which ``tp`` ranks may run a block.

    Args:
        tp: ranks that divide the operators of a block.
        micro_batches: examples of one pass that are tried.
        tiers: number of networks, any of which may carry the exchanges.
    """
    for micro_batch in micro_batches:
        for recompute in RECOMPUTED:
            for exchange in EXCHANGES:
                for again in (False, True) if exchange == SEQUENCE and recompute != FULL else (False,):
                    for overlap in OVERLAPS if tp > 1 else OVERLAPS[:1]:
                        for tier in range(tiers if tp > 1 else 1):
                            yield Way(micro_batch, recompute, exchange, again, overlap, tier)


@dataclass(frozen=True)
class BlockCosts:
    """One micro-batch takes this in one block on one rank. Of each array the last axis has a number a way.

    Arrays of two rows are of a block inside a stage, and of the last one of a stage.
    """

    forward_s: Floats
    backward_s: Floats
    """Seconds of the gradients of inputs and of weights."""
    again_s: Floats
    """Seconds of what the backward pass runs again."""
    forward_memory_s: Floats
    """Seconds of ``forward_s`` in which the device reads and writes its memory."""
    backward_memory_s: Floats
    """The same of ``backward_s``."""
    forward_split_s: Floats
    """(2, ways) seconds of exchanges between the ranks that divide a block, in the open."""
    backward_split_s: Floats
    """(2, ways) seconds of those of the backward pass, with what is gathered again."""
    forward_link_s: Floats
    """(2, ways) seconds in which such exchanges hold their network, hidden or not."""
    backward_link_s: Floats
    message_bytes: Floats
    """What a stage sends to the next one."""
    saved_bytes: Floats
    """Results that the backward pass reads."""
    working_bytes: Floats
    """Results of a block while it runs."""
    input_bytes: Floats
    """What is kept of a block that runs again as a whole; else 0."""
    result_gradient_bytes: Floats
    """Gradients of results of a block while its backward pass runs."""
    weight_bytes: Floats
    gradient_bytes: Floats
    """Gradients of weights as they are added up and exchanged."""
    whole_gradient_bytes: Floats
    """The same of the block whose backward pass runs, as they are made."""
    state_bytes: Floats
    """What the optimizer keeps, of one that is not sharded."""

    def taken(self, rows: NDArray[np.int64]) -> BlockCosts:
        """Return the costs of these ways, in this order."""
        return BlockCosts(*(getattr(self, one.name)[..., rows] for one in fields(self)))


class BlockSource(Protocol):
    """It knows what the blocks of one network take."""

    count: int
    """Number of blocks, all equal."""

    def costs(self, tp: int, ways: Sequence[Way]) -> BlockCosts:
        """Return what one of ``tp`` ranks takes for one block in each way."""

    def update_s(self, tp: int, shards: int) -> float:
        """Return the seconds in which a rank updates its part of a block, of which ``shards`` ranks have one each."""
