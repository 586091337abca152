"""Scripts of expert parallelism: experts that are divided compute what the whole ones do; the rest is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cdmpp.errors import CdmppError
from cdmpp.network.update import Update
from cdmpp.network.workload import Workload
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.plan import Plan
from cdmpp.plans.script.expert_code import expert_lines, sharded_lines
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.expert import Expert
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.hsdp import HSDP
from cdmpp.plans.strategies.tensor import Tensor

FOLDER = Path(__file__).parent


def test_divided_experts_compute_what_whole_ones_do(forked_jobs):
    """Two ranks with tokens of their own, as many for each expert as come: results, and gradients of the mean loss."""
    told = json.loads(forked_jobs.run(FOLDER / "divided_experts.py"))
    assert max(map(max, told["gaps"])) < 1e-5 < told["size"]


def test_experts_are_sharded_before_their_blocks():
    plan = Plan(FSDP(), ParallelDegrees(dp_shard=4, ep=2), model_parallel=(Expert(),))
    lines = sharded_lines(plan, FSDP(reshard_after_forward=False).torch_lines("mesh['both']"))
    assert lines[0] == (
        "for one in experts: fully_shard(one, reshard_after_forward=False, mesh=mesh['dp_shard'], "
        "shard_placement_fn=lambda value: Shard(int(len(value) < 4)))"
    )
    assert "    one.set_gradient_divide_factor(8)" in lines and lines[-2].startswith("for block in blocks")


def test_what_no_script_can_have_is_refused():
    network = Workload(f"{FOLDER / 'small_lm.py'}:make_experts", mode="training_step", optimizer="adamw")
    clipped = replace(network, optimizer=Update("adamw", clip_norm=1.0))
    both = (Expert(), Tensor())
    for workload, plan, told in (
        (network, Plan(DDP(), ParallelDegrees(ep=2, tp=2), model_parallel=both), "with degrees.tp: it runs here alone"),
        (network, Plan(DDP(), ParallelDegrees(dp_replicate=2, ep=2), model_parallel=both[:1]), "degrees.dp_replicate"),
        (network, Plan(HSDP(), ParallelDegrees(dp_shard=2, ep=2), model_parallel=both[:1]), "give ddp or fsdp"),
        (clipped, Plan(DDP(), ParallelDegrees(ep=2), model_parallel=both[:1]), "leave --clip-norm out"),
    ):
        with pytest.raises(CdmppError, match=told):
            expert_lines(workload, plan, Expert())
