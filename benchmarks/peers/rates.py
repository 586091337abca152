"""Plans judged a CPU second, ours and Calculon's in turns in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.calculon import Calculon
from benchmarks.peers.networks import Blocks, links, predicted
from cdmpp.plans.question import Question
from cdmpp.plans.sources.source import StepSource

BATCH, ROUNDS, SAMPLE = 2048, 2, 1000
BATCHES = (512, 768, 1024, 1536, 2048, 3072, 4096)
"""Examples of a step that one question asks together: 1 to 8 million tokens; GPT-3 had 3.2 million."""
MEMORY_BYTES = 80e9


@dataclass(frozen=True)
class Rate:
    """Plans that were judged in so many CPU seconds, the fewest of several rounds. Of ours those that can be."""

    ranks: int
    judge: str
    plans: int
    fit: int
    cpu_s: float
    of: int = 0
    """Calculon's space has so many plans of which these are a sample; 0: these are all."""

    @property
    def per_s(self) -> float:
        return self.plans / self.cpu_s


def question(source: StepSource, ranks: int, **settings: Any) -> Question:
    """Ask for all ways to train on ``ranks`` devices."""
    return Question(source, links, ranks, BATCH, is_gpu=True, is_torch=False, **settings)


def rates(ranks: int, calculon: Calculon | None, scratch: Path) -> tuple[list[Rate], StepSource]:
    """Judge all plans for ``ranks`` devices, Calculon its own, where it is there; also return the network as read."""

    def judged(judge: str, source: StepSource, batches: tuple[int, ...] = (BATCH,)) -> Rate:
        start_s = time.process_time()
        asked = question(source, ranks, memory_limit_bytes=MEMORY_BYTES).at_batches(batches)
        found = [one.judged() for one in asked]
        cpu_s = time.process_time() - start_s
        plans = sum(int((~np.isnan(one.costs.step_s)).sum()) for one in found)
        return Rate(ranks, judge, plans, sum(int(one.fits.sum()) for one in found), cpu_s)

    start_s = time.process_time()
    network = predicted(scratch)
    first = judged("ours, predicted kernels, network read first", network)
    first = replace(first, cpu_s=time.process_time() - start_s)
    many = f"{len(BATCHES)} global batches"
    turns: list[Callable[[], Rate]] = [
        lambda: judged("ours, predicted kernels, network known", network),
        lambda: judged(f"ours, predicted kernels, network known, {many}", network, BATCHES),
        lambda: judged("ours, given seconds", Blocks()),
        lambda: judged(f"ours, given seconds, {many}", Blocks(), BATCHES),
    ]
    if calculon is not None:
        for judge, is_narrow in (("Calculon, same kinds of plans", True), ("Calculon, all its plans", False)):
            total, drawn = calculon.sample(ranks, BATCH, SAMPLE, is_narrow)

            def evaluated(judge: str = judge, total: int = total, drawn: list[Any] = drawn) -> Rate:
                found = calculon.evaluated(drawn)
                return Rate(ranks, judge, len(drawn), found.good, found.cpu_s, total if total > len(drawn) else 0)

            turns.insert(0, evaluated)
    rounds = [[turn() for turn in turns] for _ in range(ROUNDS)]
    best = [min(own, key=lambda one: one.cpu_s) for own in zip(*rounds, strict=True)]
    return [*best[:-4], first, *best[-4:]], network
