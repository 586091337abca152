"""Refused: why plans cannot be, and what would help where none fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from cdmpp.errors import some
from cdmpp.plans.combinations import usual
from cdmpp.plans.lower import lower_work
from cdmpp.plans.memory import MemoryParts
from cdmpp.plans.placement import micro_batch_of
from cdmpp.plans.plan import Plan
from cdmpp.plans.plan_words import words_of
from cdmpp.plans.question import Judged, Question
from cdmpp.plans.rank_memory import heaviest
from cdmpp.plans.shortage import shortage
from cdmpp.units import quantity


def rejected_of(judged: Judged) -> dict[str, int]:
    """Count the plans that each reason refuses, most first."""
    found = Counter(judged.why_not(int(row)) for row in np.flatnonzero(~judged.fits))
    return dict(found.most_common())


def missing(question: Question, judged: Judged, rejected: Mapping[str, int]) -> str:
    """Say why no plan fits, how much memory is missing, and what would help."""
    if np.isnan(judged.costs.step_s).all():
        return f"no plan for {question.ranks} devices: {some(list(rejected), '; ', 3)}"
    if told := question.lacks(judged):
        return told
    limit, needed = question.memory_limit_bytes or 0.0, float(np.nanmin(judged.costs.memory_bytes))
    row = int(np.nanargmin(judged.costs.memory_bytes))
    leanest, plan = words_of(question, judged, row), question.plan(judged.plans, row)
    parts = _parts(question, plan)
    told = (
        f"no plan fits: a device may hold {quantity(limit, 'B')}, and the leanest plan for {question.ranks} "
        f"devices, {leanest}, needs {quantity(needed, 'B')}, {quantity(needed - limit, 'B')} too much"
    )
    return f"{told}; {shortage(parts, plan, int(judged.plans.micro_batch[row]))}; {_help(question)}"


def _parts(question: Question, plan: Plan) -> MemoryParts:
    """Parts of the rank that holds most under a plan whose memory is known."""
    work = question.source.work(micro_batch_of(plan, question.global_batch), plan.degrees, plan.model_parallel)
    found = heaviest(work, plan, lower_work(work, plan, question.topology(plan.ranks)), question.is_gpu)
    assert found is not None
    return found[1]


def _help(question: Question) -> str:
    """Plans that would fit: other strategies on as many devices, or more devices."""
    every = usual(question.source.limits())
    for ranks in (question.ranks, *(question.ranks * 2**power for power in range(1, 7))):
        names = every if ranks == question.ranks else question.names
        try:
            judged = question.judged(ranks, names)
        except ValueError:  # no such cluster
            break
        if judged.fits.any():
            row = int(judged.order()[0])
            name = judged.plans.combinations[int(judged.plans.combination[row])].name
            return f"{name} would fit on {ranks} devices"
    return "no way to train fits on up to 64 times as many devices: take devices with more memory, or a smaller network"
