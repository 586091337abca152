"""Offload of results: those of each block that the backward pass reads wait in the memory of the host, but of the last.

They are copied while the next block runs, and come back while the backward pass of the next block does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cdmpp.errors import CdmppError
from cdmpp.network.liveness import CallBytes, Lifetimes
from cdmpp.steps.step_graph import HOST_COPY, ModuleSpan, Op, RankGraph
from cdmpp.steps.transforms.edit import Edit, moved_op
from cdmpp.steps.transforms.offload import TO_DEVICE, TO_HOST


@dataclass(frozen=True)
class BlockResults:
    """Results of one rank by the block whose backward pass reads them first."""

    rank: RankGraph

    @cached_property
    def blocks(self) -> tuple[ModuleSpan, ...]:
        """Modules whose passes follow each other, but the root; ``CdmppError`` where there are no two."""
        found = sorted(
            (one for one in self.rank.modules if not one.is_kept and one.in_backward), key=lambda one: one.forward
        )
        if any(one.forward[1] >= other.forward[0] for one, other in zip(found, found[1:], strict=False)):
            raise CdmppError("plan.offload names activations, and blocks of this network run inside each other")
        if len(found) < 2:
            raise CdmppError(
                f"plan.offload names activations, and the network has {len(found)} blocks: those of all but the last "
                "are copied, while the next one runs"
            )
        return tuple(found)

    @cached_property
    def block_of(self) -> Mapping[int, int]:
        """Place of an op of the forward pass -> number of the block with which its result leaves.

        It is the last one that reads it. What the last block reads stays, and so does what none reads.
        """
        ops, readers, own = self.rank.ops, dict[int, set[int]](), dict[int, int]()
        end = 1 + max(place for place, op in enumerate(ops) if op.phase == "backward")
        for number, one in enumerate(self.blocks):  # behind the last op that reads a parameter are others of the block
            own |= dict.fromkeys(range(one.backward[0], end), number)
            end = one.backward[0]
        for place, op in enumerate(ops):
            for source in op.inputs if op.phase == "backward" else ():
                if ops[source].phase == "forward":
                    readers.setdefault(self.written(source), set()).add(own.get(place, len(self.blocks)))
        last = len(self.blocks) - 1
        return {place: max(found) for place, found in readers.items() if max(found) < last}

    def written(self, place: int) -> int:
        """Return the place of the op that wrote a result: one that works in place hands on what it reads."""
        ops = self.rank.ops
        while not ops[place].output_bytes and ops[place].inputs:
            place = ops[place].inputs[0]
        return place

    @cached_property
    def bytes(self) -> tuple[int, ...]:
        """Bytes that leave with each block but the last."""
        ops, found = self.rank.ops, [0] * (len(self.blocks) - 1)
        runs = [(i, op.phase == "backward" and not op.is_recomputed) for i, op in enumerate(ops)]
        lifetimes, sizes = Lifetimes.of(ops, runs), CallBytes.of(ops)
        end = max(place for place, op in enumerate(ops) if op.phase == "forward")
        names = ("written", "saved", "own", "lasting", "workspace", "results")
        for number in range(len(found)):
            which = np.array([self.block_of.get(place) == number for place in range(len(ops))])
            only = replace(sizes, **{name: np.where(which, getattr(sizes, name), 0) for name in names})
            found[number] = int(lifetimes.alive(only)[1][end])
        return tuple(found)

    def edit(self, copy_s: Callable[[float], float]) -> Edit:
        """Return the ops with their copies; ``copy_s``: bytes -> seconds in one direction."""
        return _Copies(self, copy_s).edit()


class _Copies:
    def __init__(self, of: BlockResults, copy_s: Callable[[float], float]) -> None:
        self.of, self.rank, self.copy_s = of, of.rank, copy_s
        self.ops, self.places = list[Op](), dict[int, int]()
        self.out, self.back = dict[int, int](), dict[int, int]()
        """Number of a block -> new place of its copy to the host, and back."""
        blocks = of.blocks
        self.ends = {one.forward[1]: number for number, one in enumerate(blocks)}
        self.begins = {one.backward[0]: number for number, one in enumerate(blocks)}

    def edit(self) -> Edit:
        before = list[int]()
        for place, op in enumerate(self.rank.ops):
            if (number := self.begins.get(place)) is not None and number > 0:
                self._bring(number - 1)
            before.append(len(self.ops))
            self.places[place] = len(self.ops)
            self.ops.append(self._moved(place, op))
            if (number := self.ends.get(place)) is not None:
                self._leave(number)
        after = [self.places[place] for place in range(len(self.rank.ops))]
        return Edit(tuple(self.ops), after, before)

    def _moved(self, place: int, op: Op) -> Op:
        """The op at its new place; in the backward pass it reads what came back."""
        moved = moved_op(op, self.places)
        if op.phase != "backward":
            return moved
        if (number := self.begins.get(place)) in self.back:
            moved = replace(moved, waits=(*moved.waits, self.back[number]))  # type: ignore[index]
        came = [self.back.get(self.of.block_of.get(self.of.written(one), -1), self.places[one]) for one in op.inputs]
        return replace(moved, inputs=tuple(dict.fromkeys(came))) if came else moved

    def _leave(self, number: int) -> None:
        """Copy what leaves with a block, and let go of what left with the one before."""
        if (before := number - 1) in self.out:
            own = tuple(self.places[place] for place, block in self.of.block_of.items() if block == before)
            waits, name = (self.out[before],), "results are on the host"
            self.ops.append(Op(name, "forward", 0.0, kind=HOST_COPY, waits=waits, inputs=own))
        if number < len(self.of.bytes) and self.of.bytes[number]:
            self.out[number] = len(self.ops)
            seconds, waits = self.copy_s(self.of.bytes[number]), (self.places[self.of.blocks[number].forward[1]],)
            self.ops.append(Op("results to the host", "forward", seconds, kind=HOST_COPY, stream=TO_HOST, waits=waits))

    def _bring(self, number: int) -> None:
        if not (size := self.of.bytes[number]):
            return
        self.back[number] = len(self.ops)
        waits = (len(self.ops) - 1,)
        seconds, name = self.copy_s(size), "results from the host"
        made = Op(name, "backward", seconds, kind=HOST_COPY, stream=TO_DEVICE, waits=waits, output_bytes=size)
        self.ops.append(replace(made, inputs=(self.out[number],)))
