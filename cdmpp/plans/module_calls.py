"""ModuleCalls: exchanges of the parameters and gradients of FSDP modules, as arrays with a number an exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cdmpp.steps.exchange import START
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import RankGraph
from cdmpp.steps.strategy import IntArray

SCATTER, REDUCE, GATHER = range(3)
KINDS = ("reduce_scatter", "all_reduce", "all_gather")
"""The kinds by their numbers."""


@dataclass(frozen=True)
class ModuleCalls:
    """Ranks exchange these in order; the places of their ops may differ."""

    kind: IntArray
    """One of ``SCATTER``, ``REDUCE`` (of replicas) and ``GATHER``."""
    module: IntArray
    """Number of the module."""
    is_backward: NDArray[np.bool_]
    """Whether a gather is for the backward pass."""
    after: IntArray
    """A gather leaves where this module begins in its pass, others where it ends in the backward pass."""
    before: IntArray
    """A gather is awaited by the first op of this module, others by what follows its last one; -1: only by what waits
    for all."""
    follows: NDArray[np.bool_]
    """The same as ``Exchange.follows``."""

    @classmethod
    def made(
        cls, kind: int, module: Sequence[int], after: Sequence[int], before: Sequence[int], is_backward: bool = True
    ) -> ModuleCalls:
        """Make exchanges of one kind."""
        numbers = (np.array(one, np.int64) for one in (module, after, before))
        count, (modules, launch, waits) = len(module), numbers
        return cls(np.full(count, kind), modules, np.full(count, is_backward), launch, waits, np.zeros(count, np.bool_))

    @classmethod
    def joined(cls, each: Sequence[ModuleCalls]) -> ModuleCalls:
        """Put exchanges behind each other."""
        if not each:
            return cls.made(GATHER, (), (), ())
        return cls(*(np.concatenate([getattr(own, one.name) for own in each]) for one in fields(cls)))

    def taken(self, which: IntArray | NDArray[np.bool_]) -> ModuleCalls:
        """Take some, in the order of ``which``."""
        return ModuleCalls(*(getattr(self, one.name)[which] for one in fields(self)))

    def places(self, rank: RankGraph) -> tuple[IntArray, IntArray]:
        """Return the place of the op that launches each on a rank, and of the op that waits for it; -1: none does."""
        spans = np.array([(*one.forward, *one.backward) for one in rank.modules], np.int64).reshape(-1, 4)
        is_gather, begin = self.kind == GATHER, np.where(self.is_backward, 2, 0)
        after = np.where(is_gather, np.maximum(spans[self.after, begin] - 1, START), spans[self.after, 3])
        waits = np.where(is_gather, spans[self.before, begin], spans[self.before, 3] + 1)
        return after, np.where(self.before < 0, -1, waits)

    def name(self, number: int, rank: RankGraph) -> str:
        """Return a title of one of them for a reader."""
        what = "backward" if self.is_backward[number] else "forward"
        if self.kind[number] != GATHER:
            what = "gradients" if self.kind[number] == SCATTER else "gradients of replicas"
        return f"{rank.modules[self.module[number]].name} {what}"


class Shares(Protocol):
    """It is a strategy that shares modules."""

    @property
    def overlap(self) -> bool:
        """It computes while it exchanges."""

    @property
    def prefetch(self) -> int:
        """So many modules are gathered ahead."""

    @property
    def is_pipelined(self) -> bool:
        """It runs in a stage of a pipeline."""


def gathers(order: Sequence[int], by: Shares, is_backward: bool) -> ModuleCalls:
    """Make all-gathers of modules by number. With overlap one may leave where the module ``prefetch`` before it begins.

    Without it the backward pass gathers one ahead too, and stands still for it there; the forward pass only where it is
    told to.
    """
    ahead = order
    if by.overlap or is_backward or by.prefetch > 1:
        ahead = [*[order[0]] * min(by.prefetch, len(order)), *order[: -by.prefetch]] if order else []
    return ModuleCalls.made(GATHER, order, ahead, order if by.overlap else ahead, is_backward)


def scatters(modules: Sequence[ModuleSpan], own: Sequence[int], by: Shares) -> ModuleCalls:
    """Make the exchanges that scatter gradients, one a module.

    With overlap, what follows the backward pass of the next module waits: one buffer holds what is scattered.
    """
    order = sorted(own, key=lambda i: modules[i].backward[1])
    if by.is_pipelined:  # all after the last, the root first, in the order of the model
        by_name = sorted(own, key=lambda i: (not modules[i].is_kept, modules[i].forward))
        return ModuleCalls.made(SCATTER, by_name, order[-1:] * len(order), [-1] * len(order))
    return ModuleCalls.made(SCATTER, order, order, [*order[1:], *order[-1:]] if by.overlap else order)
