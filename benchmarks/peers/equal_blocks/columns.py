"""BlockPlans: plans of one shape, a column a setting."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Shape:
    """Ranks of a job, by what they divide, and the stages of each."""

    tp: int
    """Ranks that divide the operators of a block."""
    pp: int
    """Ranks that divide the blocks."""
    dp: int
    """Ranks that divide the examples of a step."""
    stages: int
    """Stages of each rank; each has as many blocks."""
    blocks: int
    """Blocks of a rank."""

    @property
    def blocks_per_stage(self) -> int:
        """Return the blocks of one stage."""
        return self.blocks // self.stages


@dataclass(frozen=True)
class BlockPlans:
    """All arrays have one value a plan."""

    shape: Shape
    way: Integers
    """Place of the way in which it runs its blocks, among those of its ``tp``."""
    split_tier: Integers
    """Number of the network between the ranks that divide a block."""
    micro_batches: Integers
    """Passes of one rank in one step."""
    shards: Flags
    """True if each of the ``dp`` ranks updates its part of the weights (reduce-scatter and all-gather)."""
    overlaps: Flags
    """True if gradients are exchanged while the backward pass runs on, and weights while the next forward pass does."""
    weights_out: Flags
    """True if weights lie in the memory of the host, and come to the device block by block."""
    activations_out: Flags
    """True if saved results do."""
    states_out: Flags
    """True if the optimizer's states and the gradients do."""
    message_tier: Integers
    """Number of the network between stages."""
    replica_tier: Integers
    """Number of the network between replicas."""

    def __len__(self) -> int:
        return len(self.way)

    def taken(self, rows: Integers | Flags) -> BlockPlans:
        """Keep some plans, in the order of ``rows``."""
        return replace(self, **{one.name: getattr(self, one.name)[rows] for one in fields(self)[1:]})
