"""OpColumns: the ops of a rank as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from cdmpp.steps.step_graph import RankGraph


@dataclass(frozen=True)
class OpColumns:
    """Each array has one number an op, but for ``reads``."""

    rank: RankGraph

    @cached_property
    def phases(self) -> NDArray[np.str_]:
        """Phase of each op."""
        return np.array([op.phase for op in self.rank.ops])

    @cached_property
    def phase_numbers(self) -> NDArray[np.int64]:
        """A number for each phase; of each op."""
        return np.unique(self.phases, return_inverse=True)[1]

    @cached_property
    def is_forward(self) -> NDArray[np.bool_]:
        """Which ops are of the forward pass."""
        return self.phases == "forward"

    @cached_property
    def is_backward(self) -> NDArray[np.bool_]:
        """Which ops are of the backward pass."""
        return self.phases == "backward"

    @cached_property
    def is_update(self) -> NDArray[np.bool_]:
        """Which ops are of the update."""
        return self.phases == "update"

    @cached_property
    def reads(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Readers, and what they read: a pair for each input of an op of the passes, in order."""
        inputs = [() if op.phase == "update" else op.inputs for op in self.rank.ops]
        counts = np.array([len(one) for one in inputs], np.int64)
        sources = np.fromiter(chain.from_iterable(inputs), np.int64, int(counts.sum()))
        return np.repeat(np.arange(len(inputs)), counts), sources

    @cached_property
    def op_kinds(self) -> NDArray[np.int64]:
        """A number for each op, the same for those that write as many bytes and read as many results."""
        found = dict[object, int]()
        kinds = [
            (
                op.phase,
                op.is_recomputed,
                op.output_bytes,
                op.saved_bytes,
                op.result_bytes,
                len(op.inputs),
                op.own_saved_bytes,
                op.gradient_bytes,
            )
            for op in self.rank.ops
        ]
        return np.array([found.setdefault(one, len(found)) for one in kinds], np.int64)
