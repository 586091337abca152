"""Search: from the default, setting after setting, along the longest chain of the step; the replay judges.

After the optimiser of dPRO (MLSys 2022, section 5), with every setting that PyTorch has in place of its graph passes.
"""

from __future__ import annotations

from dataclasses import replace

from cdmpp.errors import CdmppError
from cdmpp.plans.judge import Judge
from cdmpp.plans.moves import leaner, moves, with_unit
from cdmpp.plans.plan import MOST_MICRO_STEPS, Plan
from cdmpp.plans.search_result import SearchResult, SearchStep
from cdmpp.units import quantity

LEAST_GAIN = 1e-3
"""What brings less of a step is not taken: no replay is as exact."""
PATIENCE = 5
"""The search ends after so many moves in a row that bring nothing."""


def search(
    judge: Judge, memory_limit_bytes: int | None = None, most_micro_steps: int = 1, optimizer: str = "adamw"
) -> SearchResult:
    """The best plan that moves from the default lead to; the same judge gives the same plan.

    Where the default needs more memory than it may, first those settings are changed that save most bytes a second.
    Then each move whose part of the longest chain is worth it is tried with all its plans, and the best one is taken.

    Args:
        judge: of a predicted or a traced job.
        memory_limit_bytes: of a rank; no plan holds more. None: no limit.
        most_micro_steps: batches whose gradients may be added up. More than 1 multiplies the global batch.
        optimizer: for the settings: ``sgd``, ``adam`` or ``adamw``.

    Raises:
        CdmppError: a limit that no plan keeps, with what is missing; one for a job whose memory is not known.
    """
    if not 1 <= most_micro_steps <= MOST_MICRO_STEPS:
        raise CdmppError(f"{most_micro_steps} micro-steps: expected 1 to {MOST_MICRO_STEPS:,}")
    if memory_limit_bytes is not None and judge.peak_bytes(judge.default) is None:
        raise CdmppError("what this job holds in memory is not known, so no limit can be kept: leave it out")
    found = _Search(judge, memory_limit_bytes, most_micro_steps)
    found.fit()
    found.improve()
    worth = judge.worth(found.plan)
    return SearchResult(
        found.plan, worth, judge.default, judge.worth(judge.default), memory_limit_bytes, tuple(found.steps), optimizer,
        (*judge.assumed, *_flags(found.plan)),
    )  # fmt: skip


def _flags(plan: Plan) -> tuple[str, ...]:
    told = []
    if plan.micro_steps > 1:
        told.append(f"the global batch is {plan.micro_steps} times as large: the learning rate may need another value")
    if plan.recomputed:
        told.append("a unit is what runs between the first and the last use of its parameters; random numbers are none")
    if plan.fused_update:
        told.append(
            "one update takes as long as all: only the pauses of the host between them are saved; PyTorch updates "
            "many parameters at a time on GPUs by default"
        )
    return tuple(told)


class _Search:
    def __init__(self, judge: Judge, limit: int | None, most_micro_steps: int) -> None:
        self.judge, self.limit, self.most_micro_steps = judge, limit, most_micro_steps
        self.plan = judge.default
        self.steps = list[SearchStep]()

    def fits(self, plan: Plan) -> bool:
        return self.limit is None or self._held(plan) <= self.limit

    def _held(self, plan: Plan) -> int:
        return self.judge.peak_bytes(plan) or 0

    def fit(self) -> None:
        """Take the move that saves most bytes for the time that it costs, until all fits; then what is not needed."""
        while not self.fits(self.plan):
            held, batch_s = self._held(self.plan), self.judge.worth(self.plan).batch_s
            best: tuple[float, str, Plan] | None = None
            for name, plan in leaner(self.plan, self.judge.choices):
                if (saved := held - self._held(plan)) > 0:
                    costs_s = max(self.judge.worth(plan).batch_s - batch_s, 1e-9)
                    best = max(best or (0.0, "", plan), (saved / costs_s, name, plan), key=lambda one: one[0])
            if best is None:
                raise CdmppError(self._missing())
            self._take(best[1], "memory", best[2], True)
        self.spare()

    def spare(self) -> None:
        """Recompute nothing that fits anyway, and of two units the one that costs less."""
        if not self.plan.recomputed:
            return
        choices = self.judge.choices
        while True:
            less = [tuple(unit for unit in self.plan.recomputed if unit != name) for name in self.plan.recomputed]
            others = [unit for unit in choices.units if unit not in self.plan.recomputed]
            tried = [*less, *(with_unit(left, other, choices) for left in less for other in others)]
            plans = [plan for names in tried if self.fits(plan := replace(self.plan, recomputed=names))]
            if not self._best("other units", "memory", plans, LEAST_GAIN):
                return

    def improve(self) -> None:
        """Move after move, until ``PATIENCE`` in a row bring nothing, or none is left to try."""
        idle, tried = 0, set[str]()
        while idle < PATIENCE:
            path_s = self.judge.worth(self.plan).path_s
            whole_s = sum(path_s.values())
            open_moves = [
                move
                for move in moves(self.plan, self.judge.choices, self.most_micro_steps)
                if move.name not in tried and path_s.get(move.cause, 0.0) > LEAST_GAIN * whole_s
            ]
            if not open_moves:
                return
            move = max(open_moves, key=lambda one: path_s[one.cause])  # of equal ones the first
            plans = [plan for plan in move.plans if self.fits(plan)]
            if self._best(move.name, move.cause, plans, LEAST_GAIN):
                idle, tried = 0, {move.name}
                self.spare()
            else:
                idle += 1
                tried.add(move.name)

    def _best(self, name: str, cause: str, plans: list[Plan], least: float) -> bool:
        """Take the fastest of ``plans`` where it is worth it."""
        if not plans:
            return False
        best = min(plans, key=lambda plan: self.judge.worth(plan).batch_s)  # of equal ones the first
        is_better = self.judge.worth(best).batch_s < (1 - least) * self.judge.worth(self.plan).batch_s
        self._take(name, cause, best, is_better)
        return is_better

    def _take(self, name: str, cause: str, plan: Plan, is_taken: bool) -> None:
        change = ", ".join(plan.differences(self.plan))
        before, after = self.judge.worth(self.plan), self.judge.worth(plan)
        self.steps.append(SearchStep(name, cause, change, before, after, is_taken))
        if is_taken:
            self.plan = plan

    def _missing(self) -> str:
        held, default = self._held(self.plan), self._held(self.judge.default)
        over = held - (self.limit or 0)
        told = (
            f"no plan of {self.plan.scheme} holds at most {quantity(self.limit, 'B')} a rank: the leanest that was "
            f"found needs {quantity(held, 'B')}, {quantity(over, 'B')} too much "
            f"(the default {quantity(default, 'B')})"
        )
        cut = self._held(replace(self.plan, scheme="fsdp", bucket_view=False))
        if self.plan.scheme != "fsdp" and cut <= (self.limit or 0):
            return f"{told}; fsdp would need {quantity(cut, 'B')}"
        return f"{told}; take a smaller batch"
