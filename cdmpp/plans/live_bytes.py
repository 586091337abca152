"""LiveBytes: results that are alive while the passes of one rank run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.network.liveness import Lifetimes, bytes_of
from cdmpp.plans.allocator import taken_bytes
from cdmpp.plans.cut_places import result_bytes
from cdmpp.steps.step_graph import Op, RankGraph
from cdmpp.steps.transforms.recompute import run_order

Bytes = Any
"""A number of bytes, or an array with one for each plan."""


@dataclass(frozen=True)
class LiveBytes:
    """Results that live while one rank runs the forward and the backward pass of one micro-batch."""

    saved: Bytes
    """They live from the forward into the backward pass."""
    passes: Bytes
    """Most bytes alive at a time, where each gradient goes to a place of its own at once."""
    with_gradients: Bytes
    """The same where gradients live to the end of the backward pass."""
    gradients: Bytes
    """Bytes of gradients among ``with_gradients``."""
    outputs: Bytes = 0
    """Bytes of what a stage hands on; ``torch.distributed.pipelining`` keeps it to the end of the backward pass."""


@dataclass(frozen=True)
class RunOrder:
    """The order in which ops of the passes run."""

    rank: RankGraph
    lifetimes: Lifetimes
    is_forward: NDArray[np.bool_]
    """Which runs are of the forward pass, and the first of their op."""

    @classmethod
    def of(cls, rank: RankGraph, recomputed: tuple[str, ...]) -> RunOrder:
        """Follow a rank whose modules of these names are recomputed."""
        ops = rank.ops
        order = [(place, again) for place, again in run_order(rank, recomputed) if ops[place].phase != "update"]
        runs = [
            (place, ops[place].phase == "backward" and not (ops[place].is_recomputed or again))
            for place, again in order
        ]
        is_forward = [ops[place].phase == "forward" and not again for place, again in order]
        return cls(rank, Lifetimes.of(ops, runs), np.array(is_forward, np.bool_))

    def live(self, ops: Sequence[Op], outputs: tuple[int, ...], is_taken: bool) -> LiveBytes:
        """Return the results alive in the passes.

        Args:
            ops: those of the rank, or of another micro-batch that runs the same ones: bytes are theirs.
            outputs: places of the ops whose results a stage hands on.
            is_taken: whether bytes are those that the allocator takes.
        """
        places = [_written(self.rank.ops, one) for one in outputs]
        (sizes, saved, workspace), result = (
            bytes_of(ops),
            np.array([result_bytes(ops[one]) for one in places], np.int64),
        )
        if is_taken:  # what is saved and what is not lie apart
            whole = np.array([ops[one].result_bytes is None for one in places], np.bool_)
            apart = np.array([op.saved_bytes is not None for op in ops], np.bool_)
            both = taken_bytes(sizes - saved) + taken_bytes(saved)
            workspace = taken_bytes(workspace)
            saved, sizes = taken_bytes(saved), np.where(apart, both, taken_bytes(sizes))
            result = np.where(whole, sizes[places], taken_bytes(result))
        handed_on = dict(zip(places, result.tolist(), strict=True))
        during, after = self.lifetimes.alive(sizes, saved, workspace, (), handed_on)
        made = {one.ready_after for one in self.rank.gradients if one.is_used}
        kept, _ = self.lifetimes.alive(sizes, saved, workspace, made, handed_on)
        peak = int(kept.argmax()) if len(kept) else 0
        written = self.lifetimes.places[: peak + 1]
        return LiveBytes(
            int(after[self.is_forward][-1]) if self.is_forward.any() else 0,
            int(during.max(initial=0)),
            int(kept.max(initial=0)),
            int(sizes[written[np.isin(written, list(made))]].sum()),
            sum(handed_on.values()),
        )


def _written(ops: Sequence[Op], place: int) -> int:
    """Place of the op that wrote the bytes of a result: one that works in place hands on what it reads."""
    while not ops[place].output_bytes and ops[place].inputs:
        place = ops[place].inputs[0]
    return place
