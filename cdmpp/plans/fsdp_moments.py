"""FsdpMoments: which tensors the passes of one micro-batch take and let go, and where FSDP2 gathers modules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cdmpp.plans.allocations import Tensor, lives
from cdmpp.plans.sources.source import OpExchange
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import Op, RankGraph
from cdmpp.steps.transforms.recompute import run_order


@dataclass(frozen=True)
class FsdpMoment:
    """At this moment an op runs, between what FSDP2 does before and behind it."""

    begins: tuple[ModuleSpan, ...]
    """Modules whose pass begins with it, which are gathered before."""
    taken: tuple[tuple[Tensor, int], ...]
    """Tensors with their bytes."""
    gradients: tuple[tuple[str, int, int], ...]
    """Gradients of parameters that it makes: the module, empty for the root, the place of the op, and bytes."""
    freed: tuple[Tensor, ...]
    """Tensors that nobody reads any more."""
    ends: tuple[ModuleSpan, ...]
    """Modules whose pass ends with it."""


@dataclass(frozen=True)
class FsdpMoments:
    """These are the moments of the passes of one micro-batch."""

    forward: tuple[FsdpMoment, ...]
    backward: tuple[FsdpMoment, ...]

    @classmethod
    def of(cls, rank: RankGraph, recomputed: Sequence[str] = (), exchanges: Sequence[OpExchange] = ()) -> FsdpMoments:
        """Follow the ops of a rank.

        Args:
            rank: the ops of one micro-batch.
            recomputed: names of modules that run again in the backward pass.
            exchanges: collectives between ops of the rank that have buffers of their own: what is gathered is copied
                into order by the op that waits for it, and what is scattered was copied into order before.
        """
        return _Followed(rank, recomputed, exchanges).moments()


class _Followed:
    def __init__(self, rank: RankGraph, recomputed: Sequence[str], exchanges: Sequence[OpExchange]) -> None:
        self.rank, self.ops = rank, rank.ops
        self.runs = [one for one in run_order(rank, recomputed) if rank.ops[one[0]].phase != "update"]
        self.ends, self.sizes = lives(rank.ops, self.runs)
        self.runs_of = defaultdict[int, list[int]](list)
        for run, (place, _) in enumerate(self.runs):
            self.runs_of[place].append(run)
        self.more = defaultdict[int, list[Tensor]](list)
        self.share_saved()
        self.add_buffers(exchanges)

    def share_saved(self) -> None:
        """Let what an op saves beside its result be the last thing that it reads, where that is as large.

        So a loss saves the logarithms that it made just before, and no copy of them.
        """
        for run, (place, again) in enumerate(self.runs):
            size = self.sizes.get((run, "own"), 0)
            for source in self.ops[place].inputs if size and not again else ():
                made = (max((one for one in self.runs_of[source] if one < run), default=-1), "result")
                if self.ends.get(made) == run and abs(self.sizes[made] - size) <= _result(self.ops[place]):
                    self.ends[made] = self.ends.pop((run, "own"))
                    del self.sizes[run, "own"]
                    break

    def add_buffers(self, exchanges: Sequence[OpExchange]) -> None:
        """Add what collectives of operators read or write beside the results of the ops."""
        for number, one in enumerate(exchanges):
            for run in self.runs_of[one.after] if one.after >= 0 else ():
                later = min((each for each in self.runs_of[one.before[0]] if each > run), default=None)
                if later is not None:
                    tensor = run, f"sent {number}"
                    self.sizes[tensor], self.ends[tensor] = one.bytes, max(run, later - (one.kind != "all_gather"))
                    self.more[run].append(tensor)

    def moments(self) -> FsdpMoments:
        """Return the moments."""
        begins, ends, owners = self.spans()
        gradients, freed = defaultdict[int, list[tuple[str, int, int]]](list), defaultdict[int, list[Tensor]](list)
        for place in {one.ready_after for one in self.rank.gradients if one.is_used and self.runs_of[one.ready_after]}:
            op, run = self.ops[place], self.runs_of[place][-1]
            size = _result(op) if op.gradient_bytes is None else op.gradient_bytes
            owner = next((one.name for first, last, one in owners if first <= run <= last), "")
            gradients[run].append((owner, place, size))
            left = self.sizes.pop((run, "result"), 0) - size
            if left > 0:
                self.sizes[run, "result"] = left
        for tensor, run in self.ends.items():
            if tensor in self.sizes:
                freed[run].append(tensor)
        found = [
            FsdpMoment(
                tuple(begins[run]),
                tuple((one, self.sizes[one]) for one in self.taken(run)),
                tuple(gradients[run]), tuple(freed[run]), tuple(ends[run]),
            )
            for run in range(len(self.runs))
        ]  # fmt: skip
        many = [run for run, (place, again) in enumerate(self.runs) if again or self.ops[place].phase != "forward"]
        first = many[0] if many else len(found)
        return FsdpMoments(tuple(found[:first]), tuple(found[first:]))

    def taken(self, run: int) -> list[Tensor]:
        """List the tensors that a run takes."""
        own: list[Tensor] = [(run, "workspace"), (run, "result"), (run, "own"), *self.more[run]]
        return [one for one in own if one in self.sizes]

    def spans(
        self,
    ) -> tuple[dict[int, list[ModuleSpan]], dict[int, list[ModuleSpan]], list[tuple[int, int, ModuleSpan]]]:
        """Return the modules whose passes begin, and end, with a run, and the runs of their backward passes."""
        begins, ends = defaultdict[int, list[ModuleSpan]](list), defaultdict[int, list[ModuleSpan]](list)
        owners = list[tuple[int, int, ModuleSpan]]()
        for one in self.rank.modules:
            if one.is_kept:
                continue
            (first, last), (back, end) = one.forward, one.backward
            begins[self.runs_of[first][0]].append(one)
            ends[self.runs_of[last][0]].append(one)
            if not one.in_backward:
                continue
            begin, over = self.runs_of[back][-1], self.runs_of[end][-1]
            while begin and self.runs[begin - 1][1]:  # it runs again first
                begin -= 1
            begins[begin].append(one)
            ends[over].append(one)
            owners.append((begin, over, one))
        return begins, ends, owners


def _result(op: Op) -> int:
    return op.output_bytes if op.result_bytes is None else op.result_bytes
