"""One plan as columns of candidates, so that the closed form judges it as it judges millions."""

from __future__ import annotations

import numpy as np

from cdmpp.plans.candidates import DEGREES, VALID, Candidates
from cdmpp.plans.combinations import Combination
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.strategy import Strategy


def one_plan(
    strategy: Strategy, operators: tuple[Strategy, ...], pipeline: Pipeline, degrees: ParallelDegrees,
    global_batch: int, micro_batch: int, recomputes: bool = False,
) -> Candidates:  # fmt: skip
    """Return the columns of a plan.

    Args:
        strategy: of the replicas.
        operators: strategies that divide operators.
        pipeline: its schedule; its micro-batches are gradient accumulation steps where there is one stage.
        degrees: of the job.
        global_batch: examples of a step.
        micro_batch: examples of a rank and pass.
        recomputes: whether every module runs its forward pass again in the backward pass.
    """
    model_parallel = (*operators, pipeline) if degrees.pp > 1 else operators
    combination = Combination("plan", strategy, model_parallel, (strategy.degrees[0], *degrees.beyond_one()))

    def column(value: int) -> np.ndarray:
        return np.array([value], np.int64)

    return Candidates(
        (combination,), degrees.ranks, global_batch, {}, (pipeline.order,), column(0),
        np.array([[getattr(degrees, name) for name in DEGREES]], np.int64), column(micro_batch),
        column(pipeline.micro_batches), column(0), column(int(recomputes)), column(VALID),
    )  # fmt: skip
