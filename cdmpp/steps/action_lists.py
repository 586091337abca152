"""ActionLists: what all ranks of a pipeline run in one step, and what follows from that without any times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cdmpp.steps.schedule import BACKWARD, FORWARD, INPUTS, WEIGHTS, Action

Turn = tuple[Action, ...]
"""Actions that send only when all of them have ended."""
_GATHERED = 3
"""Stages of a rank whose parameters PyTorch gathers ahead."""


class Message(NamedTuple):
    """A stage reads the result of a pass of a neighbour."""

    kind: str
    """``FORWARD``, or ``BACKWARD`` for gradients."""
    stage: int
    """The stage that reads it."""
    micro_batch: int


class Moment(NamedTuple):
    """One pass runs, and micro-batches of the stages of its rank are in flight."""

    running: int
    """Stage of the pass, by its place among those of the rank."""
    saved: tuple[int, ...]
    """Of each stage of the rank the micro-batches that have begun their forward pass and not ended their backward
    pass, without the one that runs."""
    pending: tuple[int, ...]
    """Those whose gradients of weights are all that is missing, with the one that runs."""


@dataclass(frozen=True)
class ActionLists:
    """Lists that wait for each other raise ``RecursionError``."""

    turns: tuple[tuple[Turn, ...], ...]
    """Turns of each rank, in order."""
    owners: tuple[int, ...]
    """Rank of each stage."""
    micro_batches: int

    @property
    def ranks(self) -> int:
        """Return the ranks of the pipeline."""
        return len(self.turns)

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
        found = {kind: np.zeros(self.stages, np.int64) for kind in (FORWARD, BACKWARD, INPUTS, WEIGHTS)}
        for one in (one for turns in self.turns for turn in turns for one in turn):
            found[one.kind][one.stage] += 1
        return found

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

    def moments(self, rank: int) -> tuple[Moment, ...]:
        """List the moments at which a rank may hold most; others hold no more of any stage."""
        if rank not in self._moments:
            self._moments[rank] = self._moments_of(rank)
        return self._moments[rank]

    @cached_property
    def _moments(self) -> dict[int, tuple[Moment, ...]]:
        return {}

    def _moments_of(self, rank: int) -> tuple[Moment, ...]:
        own = [stage for stage, owner in enumerate(self.owners) if owner == rank]
        places = {stage: place for place, stage in enumerate(own)}
        saved, pending, seen = [0] * len(own), [0] * len(own), dict[Moment, None]()
        for one in (one for turn in self.turns[rank] for one in turn):
            place = places[one.stage]
            if one.kind == FORWARD:
                seen[Moment(place, tuple(saved), tuple(pending))] = None
                saved[place] += 1
                continue
            saved[place] -= 1
            seen[Moment(place, tuple(saved), tuple(pending))] = None
            pending[place] -= one.kind == WEIGHTS
            if one.kind == INPUTS:
                saved[place] += 1
                pending[place] += 1
        found = list(seen)
        held, running = np.array([(*one.saved, *one.pending) for one in found]), np.array([one[0] for one in found])
        is_above = (held[:, np.newaxis] >= held).all(axis=2) & (running[:, np.newaxis] == running)
        np.fill_diagonal(is_above, False)
        return tuple(one for one, is_below in zip(found, is_above.any(axis=0).tolist(), strict=True) if not is_below)
