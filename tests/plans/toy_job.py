"""Ranks whose layers are units with something inside to keep, and what they hold in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cdmpp.collectives.fabric import fitted
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.network.training_step import StepMemory
from cdmpp.plans.memory import Memory, Result
from cdmpp.plans.plan import Plan
from cdmpp.plans.work_judge import WorkJudge
from cdmpp.steps.work import Gradient, Operation, RankWork, Unit

MIB = 2**20


def layers(sizes: Sequence[int], forward_s: Sequence[float], updates: int = 1, gap_s: float = 0.0) -> RankWork:
    """Two operations forward a layer, ``forward_s`` in all, one backward of twice that; ``updates`` of 1 ms in all."""
    count = len(sizes)
    forward = [Operation(f"f{i}{part}", "forward", forward_s[i] / 2, gap_s) for i in range(count) for part in "ab"]
    backward = [Operation(f"b{i}", "backward", 2 * forward_s[i], gap_s) for i in reversed(range(count))]
    update = [Operation(f"u{i}", "update", 1e-3 / updates, gap_s) for i in range(updates)]
    last = [3 * count - 1 - i for i in range(count)]
    return RankWork(
        0,
        (*forward, *backward, *update),
        tuple(Gradient(f"layer.{i}", size, last[i]) for i, size in enumerate(sizes)),
        tuple(Unit(f"layer.{i}", size, (2 * i, 2 * i + 1), (last[i], last[i])) for i, size in enumerate(sizes)),
    )


def memory(work: RankWork, inside: Sequence[int], out: int = MIB) -> Memory:
    """The first operation of a layer writes ``inside`` bytes, the second one ``out``; the backward pass reads both."""
    count = len(inside)
    results = [
        Result(inside[i] if part == 0 else out, (2 * i + part - 1,) if 2 * i + part else ())
        for i in range(count)
        for part in range(2)
    ]
    for number, i in enumerate(reversed(range(count))):
        before = (2 * count + number - 1,) if number else ()
        results.append(Result(work.gradients[i].bytes, (2 * i, 2 * i + 1, *before), is_gradient=True))
    results += [Result(0)] * (len(work.operations) - len(results))
    size = work.gradient_bytes
    return Memory(StepMemory(size, size, 0, 0, 0, 0, 0), tuple(results), work)


def judge(
    work: RankWork, ranks: int = 2, alpha_s: float = 1e-4, beta_s: float = 1e-9, default: Plan | None = None,
    held: Memory | None = None,
) -> WorkJudge:  # fmt: skip
    """Equal ranks on links of two numbers."""
    works = tuple(replace(work, rank=rank) for rank in range(ranks))
    return WorkJudge(works, fitted(AlphaBeta(alpha_s, beta_s), ranks, "nccl"), default or Plan(), held)
