"""Search: from the default, setting after setting, along the critical path of the step; the evaluator decides.

After the optimizer of dPRO (MLSys 2022, section 5), with every setting that PyTorch has in place of its graph passes.
"""

from __future__ import annotations

from dataclasses import replace

from cdmpp.errors import CdmppError, InfeasiblePlanError
from cdmpp.plans.cost import Cost
from cdmpp.plans.evaluate import Evaluator
from cdmpp.plans.plan import ACCUMULATION, Plan, plan_on
from cdmpp.plans.proposals import memory_savers, proposals, with_module
from cdmpp.plans.search_result import SearchResult, SearchStep
from cdmpp.plans.shortage import shortage
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.units import quantity

LEAST_GAIN = 1e-3
"""A proposal that saves a smaller share of a step is not taken: no replay is as exact."""
PATIENCE = 5
"""The search ends after so many proposals in a row that save nothing."""


def search(
    evaluator: Evaluator,
    memory_limit_bytes: int | None = None,
    most_accumulation_steps: int = 1,
    optimizer: str = "adamw",
) -> SearchResult:
    """Find the best plan that proposals lead to from the default; the same evaluator gives the same plan.

    Where the default needs more memory than allowed, settings are changed first that save most bytes a second. Then
    each proposal whose part of the critical path is worth it is tried with all its plans, and the best one is taken.

    Args:
        evaluator: the cost of each plan of a predicted or a traced job.
        memory_limit_bytes: most bytes of a rank; no plan needs more. None: no limit.
        most_accumulation_steps: batches whose gradients may be added up. More than 1 multiplies the global batch.
        optimizer: ``sgd``, ``adam`` or ``adamw``, for the settings.

    Raises:
        InfeasiblePlanError: no plan keeps the limit; it says what is missing.
        CdmppError: a limit for a job whose memory is unknown.
    """
    ACCUMULATION.fitting("most_accumulation_steps", most_accumulation_steps)
    if memory_limit_bytes is not None and evaluator.peak_bytes(evaluator.default) is None:
        raise CdmppError("the memory of this job is not known, so that no limit can be kept: leave the limit out")
    found = _Search(evaluator, memory_limit_bytes, most_accumulation_steps)
    found.fit_memory()
    found.improve()
    return SearchResult(
        found.plan, found.cost, evaluator.default, evaluator.evaluate(evaluator.default), memory_limit_bytes,
        tuple(found.steps), optimizer, (*evaluator.warnings, *_warnings(found.plan, evaluator.space.can_accumulate)),
    )  # fmt: skip


def _warnings(plan: Plan, batch_grows: bool) -> tuple[str, ...]:
    found = list[str]()
    if batch_grows and (steps := plan.gradient_accumulation_steps) > 1:
        found.append(f"the global batch is {steps} times as large: the learning rate may need another value")
    found += plan.strategy.memory_warnings()
    if plan.recompute:
        found.append(
            "a module runs from the first to the last use of its parameters; random numbers are not counted there"
        )
    if plan.update == "fused":
        found.append(
            "a fused update takes as long as all updates: only the pauses of the host between them are saved; PyTorch "
            "updates many parameters at a time on GPUs by default"
        )
    return tuple(found)


class _Search:
    def __init__(self, evaluator: Evaluator, limit: int | None, most_accumulation_steps: int) -> None:
        self.evaluator, self.limit, self.most_accumulation_steps = evaluator, limit, most_accumulation_steps
        self.plan = evaluator.default
        self.steps = list[SearchStep]()
        self._bounds: dict[tuple[Plan, str], float] = {}

    @property
    def cost(self) -> Cost:
        return self.evaluator.evaluate(self.plan)

    def fits(self, plan: Plan) -> bool:
        return self.limit is None or self._bytes(plan) <= self.limit

    def _bytes(self, plan: Plan) -> int:
        return self.evaluator.peak_bytes(plan) or 0

    def fit_memory(self) -> None:
        """Take the change that saves most bytes for the time that it costs, until all fits; drop what is not needed."""
        while not self.fits(self.plan):
            needed, batch_s = self._bytes(self.plan), self.cost.batch_s
            best: tuple[float, str, Plan] | None = None
            for name, plan in memory_savers(self.plan, self.evaluator.space):
                if (saved := needed - self._bytes(plan)) > 0:
                    costs_s = max(self.evaluator.evaluate(plan).batch_s - batch_s, 1e-9)
                    best = max(best or (0.0, "", plan), (saved / costs_s, name, plan), key=lambda one: one[0])
            if best is None:
                raise InfeasiblePlanError(self._missing())
            self._try(best[1], "memory", best[2], True)
        self.drop_unneeded()

    def drop_unneeded(self) -> None:
        """Recompute nothing that fits anyway, and of two modules the one that costs less."""
        if not self.plan.recompute:
            return
        space = self.evaluator.space
        while True:
            less = [tuple(module for module in self.plan.recompute if module != name) for name in self.plan.recompute]
            others = [module for module in space.modules if module not in self.plan.recompute]
            tried = [*less, *(with_module(left, other, space) for left in less for other in others)]
            plans = [plan for names in tried if self.fits(plan := replace(self.plan, recompute=names))]
            if not self._try_best("other modules", "memory", plans):
                return

    def improve(self) -> None:
        """Try proposal after proposal, until ``PATIENCE`` in a row save nothing, or none is left to try."""
        idle, tried = 0, set[str]()
        while idle < PATIENCE:
            critical_s = self.cost.critical_s
            total_s = sum(critical_s.values())
            untried = [
                one
                for one in proposals(self.plan, self.evaluator.space, self.most_accumulation_steps)
                if one.name not in tried and critical_s.get(one.cause, 0.0) > LEAST_GAIN * total_s
            ]
            if not untried:
                return
            best = max(untried, key=lambda one: critical_s[one.cause])  # the first of equal ones
            if self._least_s(best.cause) > (1 - LEAST_GAIN) * self.cost.iteration_s:
                tried.add(best.name)
                continue
            plans = [plan for plan in best.plans if self.fits(plan)]
            if self._try_best(best.name, best.cause, plans):
                idle, tried = 0, {best.name}
                self.drop_unneeded()
            else:
                idle += 1
                tried.add(best.name)

    def _least_s(self, cause: str) -> float:
        key = self.plan, cause
        if key not in self._bounds:
            self._bounds[key] = self.evaluator.least_s(*key)
        return self._bounds[key]

    def _try_best(self, name: str, cause: str, plans: list[Plan]) -> bool:
        """Take the fastest of ``plans`` where it saves enough."""
        if not plans:
            return False
        best = min(plans, key=lambda plan: self.evaluator.evaluate(plan).batch_s)  # the first of equal ones
        is_better = self.evaluator.evaluate(best).batch_s < (1 - LEAST_GAIN) * self.cost.batch_s
        self._try(name, cause, best, is_better)
        return is_better

    def _try(self, name: str, cause: str, plan: Plan, is_taken: bool) -> None:
        change = ", ".join(plan.changes(self.plan))
        self.steps.append(SearchStep(name, cause, change, self.cost, self.evaluator.evaluate(plan), is_taken))
        if is_taken:
            self.plan = plan

    def _missing(self) -> str:
        limit, needed, default = self.limit or 0, self._bytes(self.plan), self._bytes(self.evaluator.default)
        message = (
            f"no plan of {self.plan.strategy.name} needs at most {quantity(limit, 'B')} a rank: the smallest that was "
            f"found needs {quantity(needed, 'B')}, {quantity(needed - limit, 'B')} too much "
            f"(the default {quantity(default, 'B')})"
        )
        memory = self.evaluator.memory
        why = "take a smaller batch" if memory is None else shortage(memory.parts(self.plan), self.plan)
        others = (
            plan_on(self.plan.ranks, kind(), recompute=self.plan.recompute)
            for kind in STRATEGIES
            if not kind.divides_model and len(kind.degrees) == 1
        )
        needs = {plan.strategy.name: self._bytes(plan) for plan in others}
        name = min(needs, key=lambda one: needs[one])
        if name != self.plan.strategy.name and needs[name] <= limit:
            return f"{message}; {why}; {name} would need {quantity(needs[name], 'B')}"
        return f"{message}; {why}"
