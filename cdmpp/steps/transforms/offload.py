"""Offload: parameters in the memory of the host come before each gather, and gradients go there behind each sum."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.step_graph import HOST_COPY, Op, RankGraph, StepGraph
from cdmpp.steps.transforms.edit import Edit, edited, moved_op

TO_DEVICE, TO_HOST = "host to device", "device to host"
"""Streams of a rank, which copy at the same time."""


def parameters_out(
    graph: StepGraph, gathers: Mapping[int, float], sums: Mapping[int, float], updates_s: Mapping[int, float]
) -> StepGraph:
    """Copy parameters and gradients as FSDP2 does under its ``CPUOffloadPolicy``, and update them on the host.

    A rank's part of a module is copied to the device where its all-gather could leave, which leaves after that. Its
    part of the gradients is copied to the host once they are summed, and the sum of the next module leaves after that,
    since both are on one stream of CUDA. The host waits for all of them before it updates.

    Args:
        graph: of a job under FSDP.
        gathers: place of each all-gather of parameters -> seconds in which a rank's part is copied to the device.
        sums: place of the last exchange that sums the gradients of a module -> seconds in which a rank's part is copied
            to the host.
        updates_s: rank -> seconds of its update on the host, which its ops share as they did on the device.
    """
    behind: dict[int, dict[int, list[int]]] = {rank.rank: defaultdict(list) for rank in graph.ranks}
    for number in sorted({*gathers, *sums}):
        for rank, place in graph.exchanges[number].after.items():
            behind[rank][place].append(number)
    made = {rank.rank: _Copies(rank, behind[rank.rank], gathers, sums) for rank in graph.ranks}
    for rank, one in made.items():
        one.run(updates_s[rank])
    found = edited(graph, lambda rank: made[rank.rank].edit())
    return replace(
        found, exchanges=tuple(_with_copies(number, one, made) for number, one in enumerate(found.exchanges))
    )


def _with_copies(number: int, one: Exchange, made: Mapping[int, _Copies]) -> Exchange:
    """Let an exchange leave after its copy to the device, and the copy to the host wait for it."""
    after = {rank: made[rank].leaves.get(number, place) for rank, place in one.after.items()}
    before = {rank: tuple(places) for rank, places in one.before.items()}
    for rank in one.after:
        if number in made[rank].copied:
            before[rank] = (*before.get(rank, ()), made[rank].copied[number])
    return replace(one, after=after, before=before)


class _Copies:
    """One rank with its copies."""

    def __init__(
        self, rank: RankGraph, behind: Mapping[int, list[int]], gathers: Mapping[int, float], sums: Mapping[int, float]
    ) -> None:
        self.rank, self.behind, self.gathers, self.sums = rank, behind, gathers, sums
        self.ops, self.places = list[Op](), dict[int, int]()
        self.leaves, self.copied = dict[int, int](), dict[int, int]()
        """Number of an exchange -> new place of the op after which it leaves, and of the copy that waits for it."""

    def run(self, update_s: float) -> None:
        """Add all ops."""
        ops = self.rank.ops
        whole_s = sum(op.duration_s for op in ops if op.phase == "update")
        self._copy(START, ops[0].phase if ops else "forward")
        is_first = True
        for place, op in enumerate(ops):
            moved = moved_op(op, self.places)
            if op.phase == "update":
                seconds = update_s * op.duration_s / whole_s if whole_s else 0.0
                waits = (*moved.waits, max(self.copied.values())) if is_first and self.copied else moved.waits
                moved = replace(moved, duration_s=seconds, delay_s=0.0, gap_s=0.0, waits=waits)
                is_first = False
            self.places[place] = len(self.ops)
            self.ops.append(moved)
            self._copy(place, op.phase)

    def _copy(self, place: int, phase: str) -> None:
        waits = () if place == START else (len(self.ops) - 1,)
        for number in self.behind.get(place, ()):
            if number in self.gathers:
                seconds, name = self.gathers[number], "parameters from the host"
                self.leaves[number] = len(self.ops)
                self.ops.append(Op(name, phase, seconds, kind=HOST_COPY, stream=TO_DEVICE, waits=waits))
                continue
            self.leaves[number] = len(self.ops)  # what was copied before must have gone
            self.ops.append(Op("gradients are there", phase, 0.0, kind=HOST_COPY, stream=TO_HOST, waits=waits))
            self.copied[number] = len(self.ops)
            name = "gradients to the host"
            self.ops.append(Op(name, phase, self.sums[number], kind=HOST_COPY, stream=TO_HOST))

    def edit(self) -> Edit:
        """Return the ops with their new places."""
        places = [self.places[place] for place in range(len(self.rank.ops))]
        return Edit(tuple(self.ops), places, places)
