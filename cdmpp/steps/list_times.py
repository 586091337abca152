"""ListTimes: how long a step takes by the lists of its ranks, for many plans at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cdmpp.steps.action_lists import ActionLists, Message
from cdmpp.steps.schedule import BACKWARD, FORWARD, INPUTS, WEIGHTS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_KINDS = (FORWARD, BACKWARD, INPUTS, WEIGHTS)
_CELLS = 4_000_000
"""Ends of passes that are held at a time."""


@dataclass(frozen=True)
class StageSeconds:
    """Arrays with a row a plan and a column a stage: seconds for one micro-batch."""

    forward: Floats
    backward: Floats
    inputs: Floats
    weights: Floats
    """The two parts of a backward pass that is divided; what both need is in each."""
    sent: Floats
    """Messages with the results of the stage before, from another rank."""
    returned: Floats
    """Messages with gradients from the next stage, from another rank."""
    ending: Floats
    """A stage's last backward pass takes so much longer, since its rank exchanges gradients with replicas then."""
    update: Floats
    """Of its update, and of all that its rank waits for before the next step, once a step."""

    @classmethod
    def joined(cls, each: Sequence[StageSeconds]) -> StageSeconds:
        """Join the plans of several."""
        return cls(*(np.concatenate([getattr(own, one.name) for own in each]) for one in fields(cls)))

    def of(self, kind: str) -> Floats:
        """Return the seconds of one kind of action."""
        return dict(zip(_KINDS, (self.forward, self.backward, self.inputs, self.weights), strict=True))[kind]


@dataclass(frozen=True)
class _Nodes:
    """Actions, then messages: each begins when the one before it on its rank or link, and what it reads, have ended."""

    before: list[int]
    """Node before each one; above all nodes the start of a rank; behind these, none."""
    read: list[int]
    column: list[int]
    """Column of its seconds: those of each kind of action, then messages each way; a column a stage."""
    is_end: NDArray[np.bool_]
    """True if it is the last action of its stage."""
    last: Ints
    """Last action of each rank."""
    backward: list[int]
    """Backward pass of the last stage of each micro-batch."""


@dataclass(frozen=True)
class ListTimes:
    """One step of all ranks."""

    lists: ActionLists

    def step_s(self, seconds: StageSeconds, is_steady: bool, each: int) -> tuple[Floats, Floats]:
        """Return the seconds from step to step, and of the last round but one in the backward passes; (plans,).

        Args:
            seconds: of all stages.
            is_steady: whether the second of two steps is taken: ranks that begin late end late. Else the first one.
            each: micro-batches of a round.
        """
        lists, nodes, count = self.lists, self._nodes, len(self._nodes.before)
        rows, most, stages = len(seconds.forward), max(1, _CELLS // count), lists.stages
        nodes_s = np.concatenate([*map(seconds.of, _KINDS), seconds.sent, seconds.returned], axis=1)
        owners = np.array(lists.owners)
        updates_s = np.stack([seconds.update[:, owners == rank].sum(axis=1) for rank in range(lists.ranks)], axis=1)
        marks = [nodes.backward[max(lists.micro_batches - many * each - 1, 0)] for many in (1, 2)]
        found, rounds = list[Floats](), list[Floats]()
        for begin in range(0, rows, most):
            own = slice(begin, begin + most)
            starts_s, before_s = np.zeros_like(updates_s[own]), np.zeros(len(updates_s[own]))
            for _ in range(1 + is_steady):
                before_s = starts_s.max(axis=1)
                ends_s = np.zeros((len(starts_s), count + lists.ranks + 1))
                ends_s[:, count:-1] = starts_s
                for number, before, read, column, end in self._levels:
                    ends_s[:, number] = np.maximum(ends_s[:, before], ends_s[:, read]) + nodes_s[own][:, column]
                    if len(end):
                        ends_s[:, number[end]] += seconds.ending[own][:, column[end] % stages]
                starts_s = ends_s[:, nodes.last] + updates_s[own]
            found.append(starts_s.max(axis=1) - before_s)
            rounds.append(ends_s[:, marks[0]] - ends_s[:, marks[1]])
        return np.concatenate(found), np.concatenate(rounds)

    @cached_property
    def _nodes(self) -> _Nodes:
        lists, stages = self.lists, self.lists.stages
        actions = [one for turns in lists.turns for turn in turns for one in turn]
        count, before, last = len(actions), list[int](), list[int]()
        kinds = {kind: number * stages for number, kind in enumerate(_KINDS)}
        read, column = [0] * count, [kinds[one.kind] + one.stage for one in actions]
        made, links, wires = dict[Message, int](), dict[tuple[int, int], int](), list[tuple[int, int, int]]()
        for rank, turns in enumerate(lists.turns):
            at = -1 - rank  # the start of the rank; numbers of starts follow all nodes
            for turn in turns:
                sent = list[Message]()
                for one in turn:
                    number = len(before)
                    before.append(at)
                    at = number
                    message = lists.message(one)
                    if message is not None and lists.is_sent(message):
                        sent.append(message)
                    elif message is not None:
                        made[message] = number
                for message in sent:
                    link, node = (rank, lists.owners[message.stage]), count + len(wires)
                    kind = len(_KINDS) + (message.kind == BACKWARD)
                    wires.append((links.get(link, _NONE), at, kind * stages + message.stage))
                    made[message] = links[link] = node
            last.append(at)
        total = count + len(wires)
        forward = {(one.stage, one.micro_batch): i for i, one in enumerate(actions) if one.kind == FORWARD}
        for number, one in enumerate(actions):
            needed = lists.needed(one)
            read[number] = _NONE if needed is None else made[needed]
            if one.kind in (BACKWARD, INPUTS) and one.stage == stages - 1:
                read[number] = forward[one.stage, one.micro_batch]
        before += [one for one, _, _ in wires]
        read += [one for _, one, _ in wires]
        column += [one for _, _, one in wires]
        none = total + lists.ranks
        starts = {-1 - rank: total + rank for rank in range(lists.ranks)} | {_NONE: none}
        ends = {one.stage: number for number, one in enumerate(actions) if one.kind != FORWARD}
        backward = [i for i, one in enumerate(actions) if one.kind in (BACKWARD, INPUTS) and one.stage + 1 == stages]
        return _Nodes(
            [starts.get(one, one) for one in before], [starts.get(one, one) for one in read], column,
            np.isin(np.arange(total), list(ends.values())), np.array(last), backward,
        )  # fmt: skip

    @cached_property
    def _levels(self) -> tuple[tuple[Ints, Ints, Ints, Ints, Ints], ...]:
        """Nodes by the longest chain before them: numbers, nodes before and read, columns, places of ends of stages."""
        nodes = self._nodes
        before, read, column = (np.array(one) for one in (nodes.before, nodes.read, nodes.column))
        return tuple(
            (own, before[own], read[own], column[own], np.flatnonzero(nodes.is_end[own]))
            for own in _levels_of(before, read)
        )


_NONE = -(2**40)
"""Stands for no node."""


def _levels_of(before: Ints, read: Ints) -> list[Ints]:
    """Nodes by the longest chain before them; ``RecursionError`` where nodes wait for each other."""
    count = len(before)
    sources, nodes = np.concatenate([before, read]), np.tile(np.arange(count), 2)
    is_node = sources < count
    sources, nodes = sources[is_node], nodes[is_node]
    missing = np.bincount(nodes, minlength=count)
    order = np.argsort(sources, kind="stable")
    sources, nodes = sources[order], nodes[order]
    begins = np.searchsorted(sources, np.arange(count + 1))
    readers = np.full((count, int(np.diff(begins).max(initial=1))), count)  # of each node; behind all: none
    readers[sources, np.arange(len(sources)) - begins[sources]] = nodes
    found, ready, done = list[Ints](), np.flatnonzero(missing == 0), 0
    while len(ready):
        found.append(ready)
        done += len(ready)
        waiting = readers[ready].ravel()
        waiting = waiting[waiting < count]
        np.subtract.at(missing, waiting, 1)
        ready = np.unique(waiting[missing[waiting] == 0])
    if done < count:
        raise RecursionError("the lists of a schedule wait for each other")
    return found
