"""Calculon's own question by plans of equal blocks: all of its plans, and those without offloading and overlap."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.peers.block_source import CalculonBlocks, host_of, in_its_words, tiers_of
from benchmarks.peers.calculon import Calculon
from benchmarks.peers.equal_blocks.closed_form import step
from benchmarks.peers.equal_blocks.question import BestBlocks, BlockPlan, BlockQuestion, JudgedBlocks, Space
from benchmarks.peers.networks import BLOCKS, HEADS
from benchmarks.peers.own_question import BATCH, MEMORY_BYTES, RANKS, SAMPLE, Answer
from cdmpp.plans.overlap import Floats

FIRST = 1000
"""Plans of our order that Calculon evaluates."""
FEW = Space(exchanges=("all_reduce",), overlaps=("none",), overlaps_replicas=(False,), host=False, partial_rounds=True)
"""Without offloading, overlap and shared sequences."""
SECONDS, BYTES = (
    ("compute", "update", "bubble", "split", "messages", "replicas", "host", "step"), ("device", "host memory"),
)  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """One plan by both: part -> ours and theirs."""

    plan: BlockPlan
    parts: dict[str, tuple[float, float]]


def questions(calculon: Calculon) -> tuple[BlockQuestion, BlockQuestion]:
    """Ask for the best of few plans, and of all; neither knows blocks yet."""
    few = BlockQuestion(
        CalculonBlocks(calculon, BLOCKS), tiers_of(calculon), RANKS, BATCH, HEADS, MEMORY_BYTES, None, FEW, True
    )
    source, host = CalculonBlocks(calculon, BLOCKS), host_of(calculon)
    return few, BlockQuestion(
        source, tiers_of(calculon), RANKS, BATCH, HEADS, MEMORY_BYTES, host, Space(partial_rounds=True)
    )


def block_answers(calculon: Calculon) -> tuple[list[Answer], list[Answer], BlockQuestion]:
    """Answer both questions, and let Calculon evaluate our best plans; return the rows of few and of all plans."""
    few, whole = questions(calculon)
    rows, _ = _answers(calculon, few, SAMPLE)
    all_rows, incumbent_s = _answers(calculon, whole, FIRST)
    found, seconds = _timed(lambda: least(calculon, whole, incumbent_s))
    count, (plan, best_s) = found
    name = f"Calculon's best of all: {count:,} plans whose lower bound is not above it"
    all_rows.append(Answer(name, all_rows[0].plans, all_rows[0].fit, seconds, _words(plan), best_s))
    total, drawn = calculon.sample(RANKS, BATCH, FIRST)
    evaluated = calculon.evaluated(drawn)
    name = f"Calculon's search, a sample, seconds for all {total:,} by its rate"
    all_rows.append(
        Answer(name, total, round(evaluated.good * total / FIRST), evaluated.cpu_s * total / FIRST, "–", float("nan"))
    )
    return rows, all_rows, whole


def _answers(calculon: Calculon, asked: BlockQuestion, first: int) -> tuple[list[Answer], float]:
    """Answer one question twice, and return the seconds of the best of our first plans by Calculon, too."""
    best, read_s = _timed(lambda: asked.best(first))
    best, known_s = _timed(lambda: asked.best(first))
    theirs, evaluated_s = _timed(lambda: calculon.evaluations([in_its_words(one) for one in best.plans]))
    step_s = np.array([one.step_s for one in theirs])
    place = int(np.nanargmin(step_s))
    given = ((best.plans[0], float(step_s[0])), (best.plans[place], float(step_s[place])))
    rows = [
        _answer("equal blocks, blocks read first", best, read_s, *given[0]),
        _answer("equal blocks, blocks known", best, known_s, *given[0]),
        _answer(f"equal blocks, its first {first:,} plans by Calculon", best, known_s + evaluated_s, *given[1]),
    ]
    return rows, given[1][1]


def _answer(judge: str, best: BestBlocks, seconds: float, plan: BlockPlan, theirs_s: float) -> Answer:
    return Answer(f"ours, {judge}", best.asked, best.fit, seconds, _words(plan), theirs_s)


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start_s = time.process_time()
    found = call()
    return found, time.process_time() - start_s


def least(calculon: Calculon, asked: BlockQuestion, incumbent_s: float) -> tuple[int, tuple[BlockPlan, float]]:
    """Find the best of all plans by Calculon's own cost.

    A plan whose lower bound of that cost is above the cost of one that is known cannot be the best; Calculon evaluates
    all others. What does not fit by our count does not by Calculon's either, whose count is never lower.

    Returns:
        How many it evaluates, and the best one with its seconds.
    """
    left = [
        judged.plan(int(row))
        for judged in _all(asked)
        for row in np.flatnonzero(bound_s(asked, judged) <= incumbent_s * (1 + 1e-9))
    ]
    step_s = np.array([one.step_s for one in calculon.evaluations([in_its_words(one) for one in left])])
    place = int(np.nanargmin(step_s))
    return len(left), (left[place], float(step_s[place]))


def _all(asked: BlockQuestion) -> Iterator[JudgedBlocks]:
    for shape in asked.shapes():
        judged = asked.judged(shape)
        if len(judged.plans):
            yield judged


def bound_s(asked: BlockQuestion, judged: JudgedBlocks) -> Floats:
    """Return a lower bound of the seconds that Calculon has for each plan.

    No block waits for the host, and of exchanges of replicas that overlap only that of one block is in the open.
    """
    plans, shape = judged.plans, judged.plans.shape
    no = np.zeros(len(plans), np.bool_)
    bare = replace(plans, weights_out=no, activations_out=no, states_out=no, overlaps=no)
    updates_s = np.array([asked.source.update_s(shape.tp, shards) for shards in (1, shape.dp)])
    found = step(bare, judged.costs, updates_s[plans.shards.astype(np.int64)], asked.tiers, None)
    return found.step_s - np.where(plans.overlaps, found.replicas_s * (1 - 1 / shape.blocks), 0.0)


def compared(calculon: Calculon, asked: BlockQuestion) -> list[Compared]:
    """Compare plans drawn from all that fit (seed 0), part by part."""
    total = sum(len(one.plans) for one in _all(asked))
    wanted = np.sort(np.random.default_rng(0).choice(total, SAMPLE, replace=False))
    found, begin = list[Compared](), 0
    for judged in _all(asked):
        rows = wanted[(wanted >= begin) & (wanted < begin + len(judged.plans))] - begin
        begin += len(judged.plans)
        for row in rows.tolist():
            plan, own, held = judged.plan(row), judged.step, judged.memory
            ours = (
                own.compute_s, own.update_s, own.bubble_s, own.split_s, own.messages_s, own.replicas_s, own.host_s,
                own.step_s, held.device_bytes, held.host_bytes,
            )  # fmt: skip
            theirs = calculon.parts(in_its_words(plan))
            found.append(
                Compared(
                    plan,
                    {
                        name: (float(one[row]), other)
                        for name, one, other in zip((*SECONDS, *BYTES), ours, theirs, strict=True)
                    },
                )
            )
    return found


def _words(plan: BlockPlan) -> str:
    shape, way = plan.shape, plan.way
    said = [
        f"tp {shape.tp}", f"pp {shape.pp} x {shape.stages}", f"dp {shape.dp}", f"micro-batch {way.micro_batch}",
        f"recompute {way.recompute}",
    ]  # fmt: skip
    if shape.tp > 1 and way.exchange != "all_reduce":
        said.append(way.exchange + (", gathers again" if way.gathers_again else ""))
    said += [f"overlap {way.overlap}"] if way.overlap != "none" else []
    said += ["ZeRO-2"] if plan.shards else []
    said += ["replicas overlap"] if plan.overlaps else []
    flags = {"weights": plan.weights_out, "results": plan.activations_out, "states": plan.states_out}
    said += [f"{' and '.join(name for name, is_out in flags.items() if is_out)} on the host"] * any(flags.values())
    return ", ".join(said)


def spread(found: Sequence[Compared], part: str) -> tuple[int, int, float, float, float]:
    """Count the plans in which the part is anything by either, and equal by both to 0.1 %; then ratios as quantiles.

    The ratios are of ours to theirs, where theirs is anything: 10 %, median, 90 %.
    """
    values = [one.parts[part] for one in found if max(one.parts[part]) > 0]
    equal = sum(abs(ours - theirs) <= 1e-3 * max(ours, theirs) for ours, theirs in values)
    ratios = [ours / theirs for ours, theirs in values if theirs > 0]
    if not ratios:
        return len(values), equal, float("nan"), float("nan"), float("nan")
    low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9)).tolist()
    return len(values), equal, low, middle, high
