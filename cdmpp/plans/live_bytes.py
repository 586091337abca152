"""LiveBytes: results that are alive while the passes of one rank run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.network.liveness import Lifetimes
from cdmpp.plans.op_bytes import OpBytes
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
    pending: Bytes = 0
    """Bytes of gradients that wait between the two parts of a divided backward pass, next to all that is saved."""


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

    def live(
        self, sizes: OpBytes, outputs: tuple[int, ...], is_taken: bool, pending: tuple[int, ...] = ()
    ) -> LiveBytes:
        """Return the results alive in the passes.

        Args:
            sizes: bytes of the ops, of one micro-batch or of several; what is returned has a number for each.
            outputs: places of the ops whose results a stage hands on.
            is_taken: whether bytes are those that the allocator takes.
            pending: places of the ops whose results wait between the parts of a divided backward pass.
        """
        places = [_written(self.rank.ops, one) for one in outputs]
        sizes = sizes.taken() if is_taken else sizes
        handed_on = {place: sizes.results[..., place] for place in places}
        during, after = self.lifetimes.alive(sizes, (), handed_on)
        made = {one.ready_after for one in self.rank.gradients if one.is_used}
        kept, _ = self.lifetimes.alive(sizes, made, handed_on)
        runs, nothing = self.lifetimes.places, np.zeros(sizes.written.shape[:-1], np.int64)
        outputs_bytes = sum(handed_on.values(), nothing)
        if not len(runs):
            return LiveBytes(nothing, nothing, nothing, nothing, outputs_bytes, nothing)
        gradients = np.cumsum(np.where(np.isin(runs, list(made)), sizes.lasting[..., runs], 0), axis=-1)
        peak = kept.argmax(axis=-1)[..., np.newaxis]
        return LiveBytes(
            after[..., np.flatnonzero(self.is_forward)[-1]] if self.is_forward.any() else nothing,
            np.maximum(during.max(axis=-1), 0),
            np.maximum(kept.max(axis=-1), 0),
            np.take_along_axis(gradients, peak, axis=-1)[..., 0],
            outputs_bytes,
            sizes.written[..., list(pending)].sum(axis=-1),
        )

    def by_kind(self, sizes: OpBytes, outputs: tuple[int, ...], kinds: Sequence[str]) -> dict[str, LiveBytes]:
        """Return for each kind of op how much of ``live`` is results of such ops, at the moments that ``live`` is of.

        ``passes`` and ``with_gradients`` are at the moments at which all kinds together have most; the latter is
        without gradients of parameters.

        Args:
            sizes: bytes of the ops, of one micro-batch.
            outputs: as of ``live``.
            kinds: kind of each op.
        """
        handed_on = {place: sizes.results[place] for place in (_written(self.rank.ops, one) for one in outputs)}
        made = {one.ready_after for one in self.rank.gradients if one.is_used}
        if not len(self.lifetimes.places):
            return {}
        during, _ = self.lifetimes.alive(sizes, (), handed_on)
        kept, _ = self.lifetimes.alive(sizes, made, handed_on)
        most, latest, end = int(during.argmax()), int(kept.argmax()), np.flatnonzero(self.is_forward)[-1:]
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        which, found = np.array([numbers[kind] for kind in kinds]), dict[str, LiveBytes]()
        runs, is_made = self.lifetimes.places[: latest + 1], np.isin(self.lifetimes.places[: latest + 1], list(made))
        for kind, number in numbers.items():
            own, held = sizes.only(which == number), {k: v for k, v in handed_on.items() if which[k] == number}
            alone, after = self.lifetimes.alive(own, (), held)
            with_made, _ = self.lifetimes.alive(own, made, held)
            gradients = int(own.lasting[runs[is_made]].sum())
            with_gradients = int(with_made[latest]) - gradients
            returned = int(sum(held.values()))
            found[kind] = LiveBytes(int(after[end].sum()), int(alone[most]), with_gradients, gradients, returned)
        return found


def _written(ops: Sequence[Op], place: int) -> int:
    """Place of the op that wrote the bytes of a result: one that works in place hands on what it reads."""
    while not ops[place].output_bytes and ops[place].inputs:
        place = ops[place].inputs[0]
    return place
