"""What must hold of every plan: its step lies between both closed forms, and a faster link makes none slower."""

from __future__ import annotations

from itertools import pairwise, product

import pytest

from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.distributed_step import replay_plan
from cdmpp.plans.plan import Plan
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.hsdp import HSDP
from cdmpp.plans.strategies.parameter_server import ParameterServer
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.strategies.zero import ZeRO
from tests.plans.toy_source import ToySource

BOTH = (True, False)
LINKS = ("ethernet-1g", "ethernet-10g", "ethernet-25g", "nvlink4")
"""Each is faster than the one before, and starts no later."""
REPLICAS = [
    *(FSDP(again, prefetch=ahead, overlap=over) for again, ahead, over in product(BOTH, (1, 4), BOTH)),
    FSDP(scatter_each_batch=True, overlap=False), DDP(), DDP(overlap=False), ZeRO(), ZeRO(stage=2, overlap=False),
    ParameterServer(2), ParameterServer(overlap=False),
]  # fmt: skip
PLANS = [
    *(Plan(one, ParallelDegrees(**{one.degrees[0]: 4}), 2) for one in REPLICAS),
    Plan(HSDP(overlap=False), ParallelDegrees(dp_shard=2, dp_replicate=2)),
    *(
        Plan(one, ParallelDegrees(pp=2, **{one.degrees[0]: 2}), model_parallel=(Pipeline(schedule, 4),))
        for one in (DDP(), FSDP(), FSDP(overlap=False), ZeRO())
        for schedule in ("gpipe", "1f1b", "interleaved1f1b")
    ),
]


@pytest.mark.parametrize("plan", PLANS, ids=lambda one: f"{one.strategy}-{one.degrees.pp}")
def test_a_step_lies_between_both_closed_forms_and_no_faster_link_makes_it_longer(plan):
    source = ToySource(forward_s=1e-4, parameters=4_000_000)
    found = [replay_plan(source, plan, global_batch=64, device="h100", link=link) for link in LINKS]
    for one in found:
        assert one.full_overlap_s <= one.iteration_s * (1 + 1e-9)
        assert one.iteration_s <= one.no_overlap_s * (1 + 1e-9)
    assert all(slow.iteration_s >= fast.iteration_s * (1 - 1e-9) for slow, fast in pairwise(found))
    assert found[0].iteration_s > 2 * found[-1].iteration_s, "exchanges matter"
