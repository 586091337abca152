"""Whether Calculon and the oracle put the same plans into the same order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from benchmarks.peers.calculon import Calculon, execution
from benchmarks.peers.networks import BLOCKS, DEVICE
from benchmarks.peers.rates import BATCH, question
from cdmpp import devices
from cdmpp.plans.sources.source import StepSource

STRATEGIES = ("data", "zero1", "data+pipeline", "zero1+pipeline")
CLEAR = 1.05
"""Pairs of plans count as ordered where both say that they differ by more than this factor."""


@dataclass(frozen=True)
class Order:
    """Plans that both can say, with seconds of a step by each; arrays have one number a plan."""

    ours_s: np.ndarray
    theirs_s: np.ndarray
    stages: np.ndarray

    @property
    def spearman(self) -> float:
        return float(spearmanr(self.ours_s, self.theirs_s).statistic)

    def pairs(self) -> tuple[int, int]:
        """Count the pairs that both say to differ clearly, and those among them that both order alike."""
        ours, theirs = (np.log(one)[:, None] - np.log(one)[None, :] for one in (self.ours_s, self.theirs_s))
        clear = np.triu((np.abs(ours) > np.log(CLEAR)) & (np.abs(theirs) > np.log(CLEAR)), 1)
        return int(clear.sum()), int((clear & (ours * theirs > 0)).sum())

    def within_stages(self) -> list[tuple[int, int, float]]:
        """List numbers of stages with the plans that have so many, and the rank correlation of these."""
        found = []
        for stages in np.unique(self.stages):
            own = self.stages == stages
            if own.sum() > 2:
                found.append(
                    (int(stages), int(own.sum()), float(spearmanr(self.ours_s[own], self.theirs_s[own]).statistic))
                )
        return found

    def regret(self) -> tuple[float, float]:
        """Return how much slower our best plan is than the best by their times, and theirs by ours; 1: no slower."""
        ours, theirs = self.ours_s.argmin(), self.theirs_s.argmin()
        return (
            float(self.theirs_s[ours] / self.theirs_s.min()),
            float(self.ours_s[theirs] / self.ours_s.min()),
        )


def order(source: StepSource, ranks: int, calculon: Calculon) -> Order:
    """Ask both for all plans of pipelines under 1F1B and replicas, whatever memory they need.

    Plans have stages of equally many blocks, all blocks or none recomputed, and optimizers that are sharded or not.
    """
    judged = question(source, ranks, strategies=STRATEGIES).judged()
    plans, rows, asked = judged.plans, list[int](), list[dict[str, object]]()
    for row in np.flatnonzero(judged.fits):
        stages, combination = int(plans.degree("pp")[row]), plans.combinations[int(plans.combination[row])]
        if BLOCKS % stages or (stages > 1 and plans.schedules[int(plans.schedule[row])].name != "1f1b"):
            continue
        shards = combination.strategy.name == "zero"
        rows.append(int(row))
        asked.append(execution(ranks, stages, BATCH, int(plans.micro_batch[row]), bool(plans.recompute[row]), shards))
    theirs_s = np.array(calculon.step_s(asked, float(devices.get(DEVICE).spec["fp32_tflops"] or 0.0)))
    known = ~np.isnan(theirs_s)
    kept = np.array(rows)[known]
    return Order(judged.costs.step_s[kept], theirs_s[known], plans.degree("pp")[kept])
