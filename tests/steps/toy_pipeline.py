"""A pipeline of equal replicas made by hand: all ranks of the job, or one for each stage."""

from __future__ import annotations

from cdmpp.plans.schedules.one_forward_one_backward import OneForwardOneBackward
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.step_graph import Op, RankGraph, StepGraph
from tests.steps.toy_graph import MIB


def pipeline(
    stages: int, replicas: int, micro_batches: int, ops: int = 3, folded: bool = False, is_ahead: bool = True
) -> StepGraph:
    """Stages of ``ops`` ops, the later ones slower; each sends 4 MiB on and back, and sums 32 MiB of gradients.

    Stages are the outermost degree. ``is_ahead``: a message is received one pass before it is read.
    """
    chains = range(1 if folded else replicas)
    orders = [OneForwardOneBackward().actions(stage, stages, micro_batches) for stage in range(stages)]
    begins = [{(one.kind, one.micro_batch): ops * at for at, one in enumerate(order)} for order in orders]
    exchanges = list[Exchange]()

    def place(stage: int, chain: int) -> int:
        return stage * len(chains) + chain

    for chain in chains:
        for stage in range(stages):
            for kind, target in (("forward", stage + 1), ("backward", stage - 1)):
                for number in range(micro_batches if 0 <= target < stages else 0):
                    sender, receiver = place(stage, chain), place(target, chain)
                    begin = begins[target][kind, number]
                    posted = max(begin - ops * is_ahead - 1, START)
                    exchanges.append(
                        Exchange(
                            "send_recv", 4 * MIB, {sender: begins[stage][kind, number] + ops - 1, receiver: posted},
                            {receiver: (begin,)}, group=f"{sender}->{receiver}",
                            members=(stage * replicas + chain, target * replicas + chain),
                        )
                    )  # fmt: skip
    end = 2 * ops * micro_batches
    for stage in range(stages):
        own = [place(stage, chain) for chain in chains]
        members = tuple(range(stage * replicas, (stage + 1) * replicas))
        after, before = dict.fromkeys(own, end - 1), {rank: (end,) for rank in own}
        exchanges.append(Exchange("all_reduce", 32 * MIB, after, before, "gradients", group="dp", members=members))
    ranks = (
        RankGraph(
            place(stage, chain),
            (
                *(
                    Op(f"{one.kind} {one.micro_batch} {i}", one.kind, 1e-4 * (1 + stage + i), 1e-5 * i)
                    for one in orders[stage]
                    for i in range(ops)
                ),
                Op("update", "update", 1e-3),
            ),
            start_s=1e-4,
        )
        for stage in range(stages)
        for chain in chains
    )
    return StepGraph(tuple(ranks), tuple(exchanges))
