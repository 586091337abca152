"""Ranks whose layers are modules with something inside to keep, and what they hold in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted
from cdmpp.network.training_step import StepMemory
from cdmpp.plans.evaluate import Evaluator
from cdmpp.plans.memory import Memory
from cdmpp.plans.plan import Plan, plan_on
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import Gradient, Op, RankGraph, StepGraph
from cdmpp.steps.transforms.scale import scale_ranks

MIB = 2**20


def layers(sizes: Sequence[int], forward_s: Sequence[float], updates: int = 1, gap_s: float = 0.0) -> RankGraph:
    """Two operations forward a layer, ``forward_s`` in all, one backward of twice that; ``updates`` of 1 ms in all."""
    count = len(sizes)
    forward = [Op(f"f{i}{part}", "forward", forward_s[i] / 2, gap_s) for i in range(count) for part in "ab"]
    backward = [Op(f"b{i}", "backward", 2 * forward_s[i], gap_s) for i in reversed(range(count))]
    update = [Op(f"u{i}", "update", 1e-3 / updates, gap_s) for i in range(updates)]
    last = [3 * count - 1 - i for i in range(count)]
    return RankGraph(
        0,
        (*forward, *backward, *update),
        tuple(Gradient(f"layer.{i}", size, last[i]) for i, size in enumerate(sizes)),
        tuple(ModuleSpan(f"layer.{i}", size, (2 * i, 2 * i + 1), (last[i], last[i])) for i, size in enumerate(sizes)),
    )


def memory(rank: RankGraph, inside: Sequence[int], out: int = MIB) -> Memory:
    """The first operation of a layer writes ``inside`` bytes, the second one ``out``; the backward pass reads both."""
    count = len(inside)
    ops = list(rank.ops)
    for place in range(2 * count):
        written = out if place % 2 else inside[place // 2]
        ops[place] = replace(ops[place], output_bytes=written, inputs=(place - 1,) if place else ())
    for number, i in enumerate(reversed(range(count))):
        place = 2 * count + number
        inputs = (2 * i, 2 * i + 1, *((place - 1,) if number else ()))
        ops[place] = replace(ops[place], output_bytes=rank.gradients[i].bytes, inputs=inputs)
    size = rank.gradient_bytes
    return Memory(StepMemory(size, size, 0, 0, 0, 0, 0), replace(rank, ops=tuple(ops)))


def evaluator(
    rank: RankGraph, ranks: int = 2, alpha_s: float = 1e-4, beta_s: float = 1e-9, default: Plan | None = None,
    held: Memory | None = None,
) -> Evaluator:  # fmt: skip
    """Equal ranks on links of two numbers."""
    topology = fitted(AlphaBeta(alpha_s, beta_s), ranks, "nccl")
    return Evaluator(scale_ranks(StepGraph((rank,)), ranks), topology, default or plan_on(ranks), held)
