"""Plans that cannot be are refused, and those that can go to a file and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

import cdmpp
from cdmpp.errors import CdmppError, UsageError
from cdmpp.network.training_prediction import StepPrediction
from cdmpp.plans import ParallelDegrees, Plan, plan_on, read_plan, save_plan
from cdmpp.plans.plan_file import plan_from_dict
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.parameter_server import ParameterServer
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.strategies.zero import ZeRO


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ParameterServer(servers=-3), "ps.servers is -3: expected a whole number from 1"),
        (lambda: ParameterServer(servers=1.5), "ps.servers is 1.5"),
        (lambda: ParameterServer(part_bytes=0), "ps.part_bytes is 0: expected a whole number from 1"),
        (lambda: ParameterServer(sum_bytes_per_s=0), "ps.sum_bytes_per_s is 0"),
        (lambda: DDP(()), "ddp.bucket_bytes is empty"),
        (lambda: DDP((1, 0)), r"ddp.bucket_bytes\[1\] is 0"),
        (lambda: DDP(5), "ddp.bucket_bytes is 5: expected a list"),
        (lambda: FSDP(overlap="no"), "fsdp.overlap is 'no': expected true or false"),
        (lambda: Plan("ddp"), "plan.strategy is 'ddp': expected a Strategy"),
        (lambda: Plan(gradient_accumulation_steps=0), "gradient_accumulation_steps is 0"),
        (lambda: Plan(recompute=("",)), r"plan.recompute\[0\] is ''"),
        (lambda: Plan(update="twice"), "plan.update is 'twice'; one of separate, fused"),
        (lambda: plan_on(2, ParameterServer(servers=3)), "3 servers on 2 ranks: expected 1 to 2"),
        (lambda: plan_on(2, "zeros"), "unknown parallel strategy 'zeros'; "),
        (lambda: ParallelDegrees(dp_shard=0), "degrees.dp_shard is 0"),
        (lambda: ParallelDegrees(2**10, 2**10), "product of 1,048,576"),
        (
            lambda: Plan(DDP(), ParallelDegrees(2, tp=4)),
            "degrees.tp is 4: tensor parallelism is not supported",
        ),
        (lambda: Plan(FSDP(), ParallelDegrees(2, 2)), "degrees.dp_replicate is 2: .* not supported with fsdp"),
        (lambda: Plan(DDP(), ParallelDegrees(ep=2)), "degrees.ep is 2: expert parallelism"),
    ],
)
def test_plans_that_cannot_be_are_refused(make, told):
    with pytest.raises(CdmppError, match=told):
        make()


def test_settings_of_another_strategy_have_no_place():
    with pytest.raises(TypeError, match="bucket_bytes"):
        FSDP(bucket_bytes=(1,))
    with pytest.raises(CdmppError, match="unknown setting strategy.bucket_bytes; allowed: "):
        plan_from_dict({"strategy": {"name": "fsdp", "bucket_bytes": [1]}})


def test_the_product_of_the_degrees_is_the_number_of_ranks():
    assert ParallelDegrees(2, 3, 4, 5, 6, 7).ranks == 5040
    assert plan_on(8, "fsdp").degrees == ParallelDegrees(dp_shard=8)
    assert plan_on(8).degrees == ParallelDegrees(dp_replicate=8)


PLANS = [
    *(Plan(kind(), ParallelDegrees(**dict.fromkeys(kind.degrees, 4))) for kind in STRATEGIES if not kind.divides_model),
    *(plan_on(4, kind()) for kind in STRATEGIES if kind.divides_model),
    Plan(
        FSDP(), ParallelDegrees(pp=2, dp_shard=2), model_parallel=(Pipeline("gpipe", 6, cuts=("h.3",), overlap=True),)
    ),
    Plan(ZeRO(stage=2, bucket_elements=1000), gradient_accumulation_steps=2),
    plan_on(3, DDP((2**20, 2**23), True, overlap=False), recompute=("h.0", "h.1"), update="fused"),
    plan_on(2, ParameterServer(servers=2, sum_bytes_per_s=1e9), gradient_accumulation_steps=4),
    plan_on(2, FSDP(reshard_after_forward=False)),
]


@pytest.mark.parametrize("plan", PLANS)
def test_a_file_holds_the_whole_plan(tmp_path, plan):
    save_plan(plan, tmp_path / "plan.yaml")
    assert read_plan(tmp_path / "plan.yaml") == plan
    assert read_plan(tmp_path / "plan.yaml", plan.ranks) == plan
    assert [one.name for one in tmp_path.iterdir()] == ["plan.yaml"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("strategie: ddp", "unknown setting plan.strategie; did you mean strategy"),
        ("strategy: zeros", "unknown parallel strategy 'zeros'"),
        ("strategy: {name: ps, server: 2}", "unknown setting strategy.server; did you mean servers"),
        ("strategy: {servers: 2}", "strategy.name is None"),
        ("strategy: {name: ps, servers: -3}", "strategy.servers is -3"),
        ("degrees: {dp: 2}", "unknown setting degrees.dp; allowed: "),
        (
            "a: 1",
            "unknown setting plan.a; allowed: degrees, devices, gradient_accumulation_steps, model_parallel, ",
        ),
        ("degrees: {dp_replicate: two}", "degrees.dp_replicate is 'two'"),
        ("degrees: {tp: 2}", "tensor parallelism is not supported with ddp"),
        ("synchrony: asynchronous", "unknown synchrony 'asynchronous'; nearest: async"),
        ("recompute: h.0", "plan.recompute is 'h.0': expected a list"),
        ("{strategy: fsdp, degrees: {dp_shard: 4}, synchrony: async}", "synchrony is async, and under fsdp each of 4"),
        ("{strategy: hsdp, degrees: {dp_shard: 2}, synchrony: async}", "under hsdp each of 2 ranks updates a part"),
        ("{strategy: zero, degrees: {dp_replicate: 2}, synchrony: {name: ssp, slack: 1}}", "is ssp, and under zero"),
        ("{strategy: fsdp, degrees: {cp: 2}, model_parallel: [context], synchrony: async}", "each of 2 ranks updates"),
        ("{strategy: {name: fsdp, is_pipelined: true}, degrees: {dp_shard: 4}}", "is_pipelined is true, and degrees"),
        (
            "{strategy: {name: fsdp, scatter_each_batch: true}, degrees: {dp_shard: 2, pp: 2}, model_parallel: "
            "[pipeline]}",
            "fsdp.scatter_each_batch is true, and in a pipeline",
        ),
        (
            "{strategy: {name: hsdp, prefetch: 4}, degrees: {dp_shard: 2, pp: 2}, model_parallel: [pipeline]}",
            "hsdp.prefetch is 4, and in a pipeline all modules are gathered once",
        ),
        (
            "{degrees: {pp: 2}, model_parallel: [{name: pipeline, cuts: [h.3], balance: blocks}]}",
            "pipeline.balance is blocks, and pipeline.cuts name",
        ),
        ("strategy: {name: zero, bucket_elements: 1000}", "zero.bucket_elements is 1,000, and it is DeepSpeed's"),
        ("strategy: {name: zero, stage: 2, gathered_share: 0.5}", "gathered_share is 0.5, and it is Megatron's"),
        ("model_parallel: tensor", "model_parallel is 'tensor': expected a list"),
        ("model_parallel: {tensor: {}}", r"model_parallel is {'tensor': {}}: expected a list"),
        ("- ddp", r"plan is \['ddp'\]: expected keys with values"),
        ("update: [", "cannot be read as YAML"),
    ],
)
def test_files_that_are_no_plan_are_refused(tmp_path, text, told):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(CdmppError, match=told) as refused:
        read_plan(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "{strategy: ddp, degrees: {dp_replicate: 4}, synchrony: async}",
        "{strategy: hsdp, degrees: {dp_replicate: 4}, synchrony: async}",  # each has a whole replica
        "{strategy: ps, degrees: {dp_replicate: 4}, synchrony: {name: ssp, slack: 2}}",
        "{strategy: {name: fsdp, is_pipelined: true}, degrees: {dp_shard: 2, pp: 2}, model_parallel: [pipeline]}",
        "{degrees: {pp: 2}, model_parallel: [{name: pipeline, balance: blocks}]}",
        "strategy: {name: zero, framework: megatron, overlap: false, gathered_share: 0.5}",
    ],
)
def test_settings_that_go_together_are_read(tmp_path, text):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    save_plan(plan := read_plan(path), path)
    assert read_plan(path) == plan


def test_a_file_without_degrees_is_for_any_number_of_ranks(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text("strategy: fsdp\nupdate: fused\n")
    assert read_plan(path, 6) == replace(plan_on(6, "fsdp"), update="fused")
    path.write_text("degrees: {dp_replicate: 6}")
    with pytest.raises(CdmppError, match="the plan is for 6 ranks, and 4 are asked for"):
        read_plan(path, 4)


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "plan.yaml"
    save_plan(plan_on(2), path)
    monkeypatch.setattr("pathlib.Path.write_text", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(CdmppError, match="cannot write"):
        save_plan(plan_on(4), path)
    monkeypatch.undo()
    assert read_plan(path) == plan_on(2)


def test_changes_are_told_in_words():
    default = plan_on(2)
    plan = plan_on(2, DDP((2**22,), True), update="fused", gradient_accumulation_steps=2)
    assert plan.changes(default) == (
        "buckets of 4 MiB", "gradients lie in their buckets", "2 gradient accumulation steps", "fused update",
    )  # fmt: skip
    assert plan.changes(plan) == ()
    assert plan_on(2, FSDP(False)).changes(default)[:2] == ("strategy fsdp", "parameters stay gathered")


def test_lists_become_tuples_where_the_object_is_made():
    assert DDP(bucket_bytes=[5]) == DDP(bucket_bytes=(5,)) and Plan(recompute=["a"]) == Plan(recompute=("a",))
    assert (
        len({DDP(bucket_bytes=[5]), DDP(bucket_bytes=(5,))})
        == len({Plan(recompute=["a"]), Plan(recompute=("a",))})
        == 1
    )


@pytest.mark.parametrize("ask", [cdmpp.replay_step, cdmpp.optimize_step])
def test_a_plan_says_its_strategy_and_ranks_have_limits(ask):
    step = StepPrediction.__new__(StepPrediction)
    with pytest.raises(UsageError, match="strategy does not go with plan"):
        ask(step, strategy="fsdp", plan=plan_on(2, "ddp"))
    with pytest.raises(UsageError, match=r"^ranks is 2\.0: expected a whole number from 1 to 65536 \(ranks\)$"):
        ask(step, ranks=2.0)


@pytest.mark.parametrize("degrees", [{}, {"degrees": {"dp_replicate": 2}}])
@pytest.mark.parametrize(("name", "degree"), [("pipeline", "pp"), ("spatial", "spatial"), ("filter", "filter")])
def test_a_file_that_divides_a_model_among_one_rank_is_refused(degrees, name, degree):
    for ranks in (None, 2):
        with pytest.raises(CdmppError, match=rf"model_parallel names {name}, and degrees.{degree} is 1: give degrees"):
            plan_from_dict({"model_parallel": [name], **degrees}, ranks)
