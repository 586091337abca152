"""Plan words: a plan on one line, for a reader."""

from __future__ import annotations

from itertools import groupby

from cdmpp.plans.plan import Plan, runs
from cdmpp.plans.question import Judged, Question
from cdmpp.plans.strategies.pipeline import Pipeline


def words(plan: Plan, combination: str, micro_batch: int) -> str:
    """Say a plan on one line, such as ``data (dp_replicate 8), 2 micro-batches of 16, recomputed``."""
    many = plan.gradient_accumulation_steps
    found = []
    for one in plan.model_parallel:
        if isinstance(one, Pipeline):
            many = one.micro_batches
            found.append(one.schedule)
            if (count := one.order.stages_per_rank) > 1:
                found.append(f"{count} stages a rank")
    found += ["recomputed"] if plan.recompute else []
    found += [f"on {_places(plan)}"] if plan.devices else []
    found += [f"shares {_shares(plan)}"] if plan.shares else []
    found += [f"{' and '.join(plan.offload)} on the host"] if plan.offload else []
    degrees = [f"{name} {getattr(plan.degrees, name)}" for name in plan.degrees.beyond_one()]
    times = f"{many} micro-batches of {micro_batch}" if many > 1 else f"micro-batch of {micro_batch}"
    return ", ".join([f"{combination} ({', '.join(degrees) or 'one device'})", times, *found])


def _places(plan: Plan) -> str:
    """Say where ranks stand, stage after stage, such as ``t4 x 2, a10 x 2 | a10 x 4``."""
    each = plan.ranks // plan.degrees.pp
    stages = [plan.devices[begin : begin + each] for begin in range(0, plan.ranks, each)]
    return " | ".join(", ".join(one.replace(":", " x ") for one in runs(own)) for own in stages)


def _shares(plan: Plan) -> str:
    """Say the micro-batches of each replica, such as ``12 x 8 + 4 x 8``."""
    counted = ((share, len([*own])) for share, own in groupby(plan.shares))
    return " + ".join(f"{share} x {many}" if many > 1 else str(share) for share, many in counted)


def words_of(question: Question, judged: Judged, row: int) -> str:
    """Say one of the plans that were judged on one line."""
    plans = judged.plans
    name = plans.combinations[int(plans.combination[row])].name
    return words(question.plan(plans, row), name, int(plans.micro_batch[row]))
