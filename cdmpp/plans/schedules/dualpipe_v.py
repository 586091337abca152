"""DualPipeV: two stages a rank, placed as a V, with a forward and a backward pass in each turn."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from cdmpp.plans.schedules.registry import LOOPED
from cdmpp.platform.limits import Limits
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.schedule import BACKWARD, FORWARD, INPUTS, WEIGHTS, Action


@LOOPED.register
@dataclass(frozen=True)
class DualPipeV(LoopedSchedule):
    """The variant of DeepSeek-V3's DualPipe that holds parameters once (Sea AI Lab and DeepSeek, 2025).

    As PyTorch runs it where nobody registers another function, the two passes of a turn come one after the other, and
    what they send leaves when both have ended.
    """

    name = "dualpipev"
    title = "forward and backward passes in pairs, two stages a rank, placed as a V"
    is_in_v = True
    divides_backward = True
    least_stages = 2
    LIMITS = {"stages_per_rank": Limits(2, 2, "stages of a rank")}

    def why_not(self, ranks: int, micro_batches: int) -> str:
        """Say where micro-batches are fewer than stages."""
        if micro_batches >= 2 * ranks:
            return ""
        return (
            f"{self.name} has {micro_batches} micro-batches on {ranks} ranks of two stages each, and PyTorch wants as "
            f"many micro-batches as stages: give {2 * ranks} or more"
        )

    def turns(self, rank: int, ranks: int, micro_batches: int) -> tuple[tuple[Action, ...], ...]:
        """List the eight parts of the schedule, as DeepSeek's code numbers them."""
        made, behind = _Turns(rank, 2 * ranks - 1 - rank), ranks - 1 - rank
        near, far = made.near, made.far
        for _ in range(2 * behind):
            made.add((near, FORWARD))
        for _ in range(rank + 1):
            made.add((near, FORWARD))
            made.add((far, FORWARD))
        for _ in range(behind):
            made.add((far, INPUTS))
            made.add_weights()
            made.add((far, FORWARD))
        for number in range(micro_batches - 2 * ranks + rank + 1):
            if number == 0 and rank == ranks - 1:  # not as one turn, so that the pipeline fills sooner
                made.add((near, FORWARD))
                made.add((far, BACKWARD))
            else:
                made.add((near, FORWARD), (far, BACKWARD))
            made.add((far, FORWARD), (near, BACKWARD))
        for _ in range(behind):
            made.add((far, BACKWARD))
            made.add((far, FORWARD), (near, BACKWARD))
        whole = 2 * ((rank + 1) // 2) + (rank % 2 == 0)
        for number in range(2 * (rank + 1)):
            made.add(((far, near)[number % 2], BACKWARD if number < whole else INPUTS))
        for _ in range(behind):
            made.add_weights()
            made.add((near, INPUTS))
        while made.waiting:
            made.add_weights()
        return tuple(made.turns)


class _Turns:
    """The turns of a rank so far; it counts micro-batches by stage and kind."""

    def __init__(self, near: int, far: int) -> None:
        self.near, self.far = near, far
        self.turns = list[tuple[Action, ...]]()
        self.waiting = deque[Action]()
        self._counts = dict[tuple[int, bool], int]()

    def add(self, *passes: tuple[int, str]) -> None:
        """Add a turn of passes; weights of divided ones wait."""
        turn = list[Action]()
        for stage, kind in passes:
            key = stage, kind == FORWARD
            turn.append(Action(stage, kind, self._counts.get(key, 0)))
            self._counts[key] = turn[-1].micro_batch + 1
            if kind == INPUTS:
                self.waiting.append(turn[-1]._replace(kind=WEIGHTS))
        self.turns.append(tuple(turn))

    def add_weights(self) -> None:
        """Add the gradients of weights that wait longest, if any do."""
        if self.waiting:
            self.turns.append((self.waiting.popleft(),))
