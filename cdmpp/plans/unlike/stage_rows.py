"""StageRows: what each device of a plan does in a step: its stage, its share of the batch, its seconds, its memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from cdmpp.plans.lower import lower_work
from cdmpp.plans.placement import micro_batch_of
from cdmpp.plans.plan import Plan
from cdmpp.plans.rank_memory import held_by_kind
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.unlike.question import UnlikeQuestion
from cdmpp.steps.replay import replay
from cdmpp.steps.transforms.merge_ops import merge_ops


@dataclass(frozen=True)
class StageRow:
    """Ranks that hold the same stages on the same device, with as many micro-batches."""

    stages: str
    """Numbers of their stages along the pipeline; empty without one."""
    device: str
    ranks: int
    begins: str
    """Modules with which their stages begin."""
    micro_batches: int
    examples: int
    """Examples of one of them in a step."""
    busy_s: float
    """Seconds of a step in which one of them computes."""
    waits_s: float
    """Seconds in which it waits for exchanges."""
    memory_bytes: float | None
    """None: unknown."""
    limit_bytes: float | None
    """None: no limit."""


def stage_rows(question: UnlikeQuestion, plan: Plan) -> tuple[StageRow, ...]:
    """Replay a plan, and list its ranks, those that are alike together, stage after stage."""
    topology, size = question.topology_of(plan), micro_batch_of(plan, question.global_batch)
    work = question.source.work(size, plan.degrees, plan.model_parallel)
    lowered = lower_work(work, plan, topology, merge=True)
    replayed = replay(merge_ops(lowered.graph), topology, synchrony=plan.synchrony)
    pipeline = next((one for one in plan.model_parallel if isinstance(one, Pipeline)), None)
    held = held_by_kind(work, plan, lowered, lambda name: name in question.gpus)
    kinds = Counter[tuple[str, int, int]]()
    firsts = dict[tuple[str, int, int], int]()
    for rank in range(plan.ranks):
        share = plan.shares[lowered.mesh.replica(rank)] if plan.shares else 0
        key = plan.devices[rank], share, lowered.mesh.place(rank, "pp")
        kinds[key] += 1
        firsts.setdefault(key, rank)
    found = []
    for (device, share, place), rank in sorted(firsts.items(), key=lambda item: (item[0][2], item[1])):
        many = share or (pipeline.micro_batches if pipeline else 1) * plan.gradient_accumulation_steps
        numbers = pipeline.order.stages_of(place, plan.degrees.pp) if pipeline else ()
        cuts = ("the first layer", *((pipeline.cuts if pipeline else None) or ()))
        begins = [cuts[number] for number in numbers if number < len(cuts)]
        at = lowered.places[rank]
        found.append(
            StageRow(
                " and ".join(map(str, numbers)), device, kinds[device, share, place], ", ".join(begins), many,
                many * size, replayed.busy_s[at], replayed.waits_s[at],
                held.get((device, share, place)), question.memory_limits.get(device),
            )
        )  # fmt: skip
    return tuple(found)
