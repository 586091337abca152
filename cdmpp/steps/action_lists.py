"""ActionLists: what all ranks of a pipeline run in one step, and what follows from that without any times.

A schedule lists codes, a pass each: which stage of the rank runs which kind of pass. Micro-batches follow: each stage
runs them in order, and the gradients of weights of divided backward passes in the order of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cdmpp.steps.schedule import BACKWARD, FORWARD, INPUTS, WEIGHTS, Action

Turn = tuple[Action, ...]
"""Actions that send only when all of them have ended."""
KINDS = (FORWARD, BACKWARD, INPUTS, WEIGHTS)
JOINED = 1 << 15
"""Flag of a code: its pass sends only when the next one has ended."""
Codes = NDArray[np.uint16]
_GATHERED = 3
"""Stages of a rank whose parameters PyTorch gathers ahead."""


def code(place: int, kind: str) -> int:
    """Return the code of a pass of one of the stages of a rank, which are numbered from 0 in rising order."""
    return KINDS.index(kind) + len(KINDS) * place


class Message(NamedTuple):
    """A stage reads the result of a pass of a neighbour."""

    kind: str
    """``FORWARD``, or ``BACKWARD`` for gradients."""
    stage: int
    """The stage that reads it."""
    micro_batch: int


@dataclass(frozen=True, eq=False)
class ActionLists:
    """Lists that wait for each other raise ``RecursionError``."""

    codes: tuple[Codes, ...]
    """Codes of each rank, in order. Passes of micro-batches beyond those of the step are left out."""
    owners: tuple[int, ...]
    """Rank of each stage."""
    micro_batches: int

    @cached_property
    def columns(self) -> NDArray[np.int32]:
        """Passes of all ranks, rank after rank; (passes, 5).

        Columns are the stage, the place of its kind in ``KINDS``, the micro-batch, 1 if a turn ends, and the place of
        the stage among those of its rank.
        """
        ranks = np.repeat(np.arange(self.ranks), [len(one) for one in self.codes])
        codes = np.concatenate(self.codes)
        plain = codes & (JOINED - 1)
        places, kinds = plain // len(KINDS), plain % len(KINDS)
        stages = self._stages[ranks, places]
        numbers = np.empty(len(codes), np.int32)
        for own in (kinds == 0, (kinds == 1) | (kinds == 2)):
            rows = np.flatnonzero(own)
            numbers[rows] = _counted(stages[rows])
        divided, weights = (np.flatnonzero(kinds == kind) for kind in (2, 3))
        divided, weights = (one[np.argsort(stages[one], kind="stable")] for one in (divided, weights))
        numbers[weights] = numbers[divided]
        found = np.stack([stages, kinds, numbers, codes < JOINED, places], axis=1, dtype=np.int32, casting="unsafe")
        return found[numbers < self.micro_batches]

    @cached_property
    def begins(self) -> NDArray[np.int64]:
        """Place in ``columns`` of the first pass of each rank, and behind all."""
        ranks = np.array(self.owners)[self.columns[:, 0]]
        return np.searchsorted(ranks, np.arange(self.ranks + 1))

    @cached_property
    def _stages(self) -> NDArray[np.int32]:
        """Stages of each rank in rising order."""
        order = np.argsort(self.owners, kind="stable")
        return order.reshape(self.ranks, -1).astype(np.int32)

    @cached_property
    def turns(self) -> tuple[tuple[Turn, ...], ...]:
        """Turns of each rank, in order."""
        found = list[tuple[Turn, ...]]()
        for begin, end in pairwise(self.begins.tolist()):
            own, turn = list[Turn](), list[Action]()
            for stage, kind, number, ends_turn, _ in self.columns[begin:end].tolist():
                turn.append(Action(stage, KINDS[kind], number))
                if ends_turn:
                    own.append(tuple(turn))
                    turn = []
            found.append(tuple(own))
        return tuple(found)

    @property
    def ranks(self) -> int:
        """Return the ranks of the pipeline."""
        return len(self.codes)

    @property
    def stages(self) -> int:
        """Return the stages of all ranks."""
        return len(self.owners)

    def message(self, one: Action) -> Message | None:
        """Return the message that another stage reads of an action; None where none does."""
        if one.kind == FORWARD:
            is_last = one.stage + 1 == len(self.owners)
            return None if is_last else Message(FORWARD, one.stage + 1, one.micro_batch)
        is_read = one.stage and one.kind != WEIGHTS
        return Message(BACKWARD, one.stage - 1, one.micro_batch) if is_read else None

    def is_sent(self, message: Message) -> bool:
        """Return True if it goes to another rank."""
        return self.owners[message.stage] != self.owners[message.stage + (-1 if message.kind == FORWARD else 1)]

    def needed(self, one: Action) -> Message | None:
        """Return the message that an action reads; None: none of another stage."""
        if one.kind == FORWARD:
            return Message(FORWARD, one.stage, one.micro_batch) if one.stage else None
        is_alone = one.kind == WEIGHTS or one.stage == self.stages - 1
        return None if is_alone else Message(BACKWARD, one.stage, one.micro_batch)

    def counts(self, kind: str) -> NDArray[np.int64]:
        """Return the actions of a kind in a step, of each stage."""
        return self._counts[kind]

    @cached_property
    def _counts(self) -> Mapping[str, NDArray[np.int64]]:
        keys = self.columns[:, 1] * self.stages + self.columns[:, 0]
        found = np.bincount(keys, minlength=len(KINDS) * self.stages).reshape(len(KINDS), -1)
        return dict(zip(KINDS, found, strict=True))

    @cached_property
    def posts(self) -> Mapping[Message, int]:
        """Map each message to the actions that its receiver runs before it posts the receive.

        As PyTorch does, walk over the ranks in turn; what one sends is posted on the receiver's list at once. What it
        lists for sharded parameters and gradients between turns takes a place in that walk.
        """
        lists, found = [self._with_shards(turns) for turns in self.turns], dict[Message, int]()
        done, begun, at = set[Message](), [0] * self.ranks, [0] * self.ranks
        while any(place < len(turns) for place, turns in zip(at, lists, strict=True)):
            before = list(at)
            for rank, turns in enumerate(lists):
                if at[rank] == len(turns) or any(one not in done for one in self._each(turns[at[rank]], True)):
                    continue
                turn = turns[at[rank]]
                begun[rank] += len(turn)
                at[rank] += 1
                for one in self._each(turn, False):
                    done.add(one)
                    if self.is_sent(one):
                        found[one] = begun[self.owners[one.stage]]
            if before == at:
                raise RecursionError("the lists of a schedule wait for each other")
        return found

    def _each(self, turn: Turn, is_needed: bool) -> Iterator[Message]:
        """Yield what the actions of a turn read of other stages, or what these read of them."""
        each = (self.needed(one) if is_needed else self.message(one) for one in turn)
        return (one for one in each if one is not None)

    def _with_shards(self, turns: tuple[Turn, ...]) -> list[Turn]:
        """The turns, and an empty one wherever PyTorch gathers a stage, lets it go, or reduces its gradients."""
        following, needed = dict[int, int](), list[set[int]]()
        for place in reversed(range(len(turns))):
            following.update((one.stage, place) for one in turns[place])
            needed.append({*sorted(following, key=following.__getitem__)[:_GATHERED]})
        left, found, gathered = dict[int, int](), list[Turn](), set[int]()
        for turn, own in zip(turns, reversed(needed), strict=True):
            found += [()] * len(gathered ^ own)
            gathered = own
            found.append(turn)
            for one in turn:
                if one.kind in (BACKWARD, WEIGHTS):
                    left[one.stage] = left.get(one.stage, self.micro_batches) - 1
                    found += [()] * (left[one.stage] == 0)
        return found


def _counted(values: NDArray[np.int32]) -> NDArray[np.int64]:
    """Number the places of each value, from 0 up."""
    is_small = values.max(initial=0) <= np.iinfo(np.uint16).max  # sorted much faster
    order = np.argsort(values.astype(np.uint16) if is_small else values, kind="stable")
    ordered = values[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=-1))
    found = np.empty(len(values), np.int64)
    found[order] = np.arange(len(values)) - np.repeat(begins, np.diff(begins, append=len(values)))
    return found
