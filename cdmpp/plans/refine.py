"""Refine: settings of the best plan changed one after the other, by the same search that one way to train has."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from cdmpp.network.precision import Precision
from cdmpp.plans.cost import Cost, by_cause
from cdmpp.plans.evaluate import Evaluator
from cdmpp.plans.lower import lower_work
from cdmpp.plans.placement import micro_batch_of
from cdmpp.plans.plan import Plan
from cdmpp.plans.question import Question
from cdmpp.plans.rank_memory import peak_of
from cdmpp.plans.search import search
from cdmpp.plans.search_result import SearchResult
from cdmpp.plans.search_space import SearchSpace
from cdmpp.plans.sources.source import RankWork
from cdmpp.plans.torch_settings import PLAIN
from cdmpp.platform.progress import log_spent
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.transforms.merge_ops import merge_ops


@dataclass(frozen=True)
class LoweredEvaluator(Evaluator):
    """It lowers each plan from the work of one rank for one micro-batch, and replays it; the batch stays as it is."""

    work: RankWork | None = None
    is_gpu: bool = False
    inputs_s: float = 0.0
    """No step is faster than its examples arrive."""

    @property
    def space(self) -> SearchSpace:
        """All settings of one way to train but those that change the batch."""
        return replace(super().space, can_accumulate=False)

    @property
    def count(self) -> int:
        """Return how many plans were replayed so far."""
        return len(self._costs)

    def evaluate(self, plan: Plan) -> Cost:
        """Find the cost of a plan."""
        assert self.work is not None and self.topology is not None
        if plan not in self._costs:
            lowered = lower_work(self.work, plan, self.topology, merge=True)
            replayed = replay(merge_ops(lowered.graph), self.topology, synchrony=plan.synchrony)
            peak_bytes = peak_of(self.work, plan, lowered, self.is_gpu)
            step_s, steps = max(replayed.step_s, self.inputs_s), plan.gradient_accumulation_steps
            self._costs[plan] = Cost(step_s, peak_bytes, by_cause(replayed.critical_s), steps)
        return self._costs[plan]

    def least_s(self, plan: Plan, cause: str) -> float:
        """Replay the step whose replicas exchange nothing, where settings change nothing but these exchanges."""
        assert self.work is not None and self.topology is not None
        if cause != "communication" or plan.strategy.copies_buffers:
            return 0.0
        lowered = lower_work(self.work, plan, self.topology, merge=True)
        return replay(merge_ops(lowered.without_replicas), self.topology, synchrony=plan.synchrony).step_s

    def peak_bytes(self, plan: Plan) -> int | None:
        """Return the peak bytes of its cost."""
        return self.evaluate(plan).peak_bytes


def refine(
    question: Question, plan: Plan, optimizer: str = "adamw", precision: Precision = PLAIN
) -> SearchResult:  # fmt: skip
    """Search settings under which a plan is faster, with the same ways to train and the same batch.

    Args:
        question: what is known of the job.
        plan: where the search begins.
        optimizer: as ``search`` takes it.
        precision: types of the job, which the settings name.
    """
    work = question.source.work(micro_batch_of(plan, question.global_batch), plan.degrees, plan.model_parallel)
    graph, topology = StepGraph((replace(work.rank, rank=0),)), question.topology_of(plan)
    evaluator = LoweredEvaluator(
        graph, topology, plan, of=question.source.of, work=work, is_gpu=question.is_gpu, inputs_s=question.inputs_s
    )
    limit = None if work.memory is None else question.memory_limit_bytes
    begun_s = time.process_time()
    found = search(evaluator, None if limit is None else round(limit), 1, optimizer)
    log_spent(f"{evaluator.count:,} settings of the best plan replayed", evaluator.count, begun_s)
    return replace(found, precision=precision)
