"""The search finds what is best by hand or by trying all, keeps to memory, and is never worse than the default."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from cdmpp.errors import CdmppError, InfeasiblePlanError
from cdmpp.plans import plan_on, search
from cdmpp.plans.plan_file import plan_from_dict
from cdmpp.plans.sizes import sizes
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.parameter_server import ParameterServer
from cdmpp.report.plan import plan_report
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.strategy_replay import replay_strategy
from tests.plans.toy_job import MIB, evaluator, layers, memory

EIGHT = layers((2 * MIB,) * 8, (1e-3,) * 8)


def test_messages_with_a_high_fixed_cost_go_together():
    found = search(evaluator(EIGHT, alpha_s=20e-3, beta_s=1e-12))
    assert len(found.plan.strategy.buckets(EIGHT)) == 1
    assert found.gain > 0.3
    taken = [step for step in found.steps if step.is_taken]
    assert {step.cause for step in taken} == {"communication"}
    assert taken[0].before == found.default_cost and taken[-1].after == found.cost


def test_a_slow_link_without_fixed_cost_wants_a_small_last_bucket():
    found = search(evaluator(EIGHT, alpha_s=0.0, beta_s=0.4e-9))  # 0.84 ms a layer: only the last one is in the open
    assert len(found.plan.strategy.buckets(EIGHT)) == 8
    assert found.iteration_s == pytest.approx(8e-3 + 16e-3 + 2 * MIB * 0.4e-9 + 1e-3)


def test_a_fast_link_leaves_the_default():
    found = search(evaluator(layers((MIB,) * 4, (10e-3,) * 4), alpha_s=1e-6, beta_s=1e-12))
    assert found.plan == found.default == plan_on(2)
    assert found.gain == 0.0
    assert "the default, as it is" in plan_report(found).title


@pytest.mark.parametrize("wire", [(0.0, 4e-9), (1e-3, 1e-9), (5e-3, 3e-9)])
def test_no_pair_of_sizes_is_better(wire):
    work = layers([MIB * size for size in (4, 1, 1, 8, 2, 2)], (1e-3,) * 6)
    asked = evaluator(work, alpha_s=wire[0], beta_s=wire[1])
    grid = [plan_on(2), *(plan_on(2, DDP(pair)) for pair in itertools.product(sizes(work.gradient_bytes), repeat=2))]
    best_s = min(asked.evaluate(plan).iteration_s for plan in grid)
    assert search(asked).iteration_s == pytest.approx(best_s, rel=1e-3)


def test_only_the_units_that_are_needed_are_recomputed():
    work = layers((MIB,) * 4, (1e-3, 4e-3, 1e-3, 1e-3))
    held = memory(work, [16 * MIB] * 4)
    asked = evaluator(work, held=held)
    view = DDP(gradient_as_bucket_view=True)
    by_names = {
        names: held.peak_bytes(plan_on(2, view, recompute=names))
        for count in range(5)
        for names in itertools.combinations([f"layer.{i}" for i in range(4)], count)
    }
    limit = by_names["layer.0", "layer.2"]
    found = search(asked, memory_limit_bytes=limit)
    fit = [names for names, held_bytes in by_names.items() if held_bytes <= limit]
    best_s = min(asked.evaluate(replace(found.plan, recompute=names)).iteration_s for names in fit)
    assert found.cost.iteration_s == pytest.approx(best_s, rel=1e-3)
    assert "layer.1" not in found.plan.recompute  # four times as slow for as many bytes
    assert found.peak_bytes <= limit < found.default_cost.peak_bytes
    assert [step.cause for step in found.steps][0] == "memory"
    assert any("random numbers" in warning for warning in found.warnings)


def test_a_limit_that_is_none_recomputes_nothing():
    held = memory(EIGHT, [16 * MIB] * 8)
    limit = held.peak_bytes(plan_on(2))
    assert search(evaluator(EIGHT, held=held), limit).plan.recompute == ()


def test_an_impossible_limit_says_what_is_missing():
    work = layers((8 * MIB,) * 4, (1e-3,) * 4)
    asked = evaluator(work, ranks=8, held=memory(work, [MIB] * 4))
    with pytest.raises(
        InfeasiblePlanError,
        match=r"at most 4.19 MB a rank: the smallest.*too much \(.*; most of it: \w+ .* and .* would help: ",
    ):
        search(asked, 4 * MIB)
    with pytest.raises(InfeasiblePlanError, match="fsdp would need"):
        search(asked, 70 * MIB)
    with pytest.raises(CdmppError, match="is not known"):
        search(evaluator(EIGHT), 4 * MIB)


@pytest.mark.parametrize("seed", range(6))
def test_never_worse_never_over_the_limit_always_the_same(seed):
    of = random.Random(seed)
    count = of.randint(2, 6)
    work = layers([of.randint(1, 8) * MIB for _ in range(count)], [of.uniform(1e-4, 3e-3) for _ in range(count)])
    held = memory(work, [of.randint(1, 16) * MIB for _ in range(count)])
    default = plan_on(3, of.choice(["ddp", "fsdp", "ps"]))
    made = [
        search(evaluator(work, 3, of2.uniform(0, 2e-3), of2.uniform(0, 4e-9), default, held), limit, 4)
        for limit in (None, held.peak_bytes(default))
        for of2 in (random.Random(seed + 100), random.Random(seed + 100))
    ]
    assert made[0] == made[1] and made[2] == made[3]
    for found in made:
        assert found.cost.batch_s <= found.default_cost.batch_s
        assert found.gain >= 0
        assert plan_from_dict(found.to_dict()["plan"]) == found.plan
    assert made[2].peak_bytes <= held.peak_bytes(default)


def test_batches_are_added_up_only_where_that_is_allowed():
    asked = evaluator(layers((16 * MIB,) * 2, (1e-3,) * 2), beta_s=5e-9)
    assert search(asked).plan.gradient_accumulation_steps == 1
    found = search(asked, most_accumulation_steps=4)
    assert found.plan.gradient_accumulation_steps == 4
    assert found.gain == pytest.approx(found.default_iteration_s / (found.iteration_s / 4) - 1)
    assert any("4 times as large" in warning for warning in found.warnings)


def test_gathering_once_is_faster_and_holds_more():
    work = layers((8 * MIB,) * 4, (1e-3,) * 4)
    held = memory(work, [MIB] * 4)
    asked = evaluator(work, beta_s=2e-9, default=plan_on(2, "fsdp"), held=held)
    free = search(asked)
    assert not free.plan.strategy.reshard_after_forward and free.gain > 0
    kept = search(asked, held.peak_bytes(plan_on(2, "fsdp")))
    assert kept.plan.strategy.reshard_after_forward


def test_servers_and_parts():
    work = layers((32 * MIB,) * 2, (1e-3,) * 2)
    asked = evaluator(work, ranks=4, alpha_s=5e-3, beta_s=1e-10, default=plan_on(4, "ps"))
    found = search(asked)
    assert found.plan.strategy.part_bytes > ParameterServer().part_bytes and found.gain > 0


def test_one_kernel_for_all_updates_saves_pauses_alone():
    asked = evaluator(layers((MIB,) * 2, (1e-3,) * 2, updates=11, gap_s=1e-4), alpha_s=1e-6, beta_s=1e-12)
    found = search(asked)
    assert found.plan.update == "fused"
    assert found.default_iteration_s - found.iteration_s == pytest.approx(10 * 1e-4)


def test_many_equal_ranks_are_judged_as_all_of_them():
    for strategy in (DDP((4 * MIB,)), FSDP(), FSDP(reshard_after_forward=False)):
        plan = plan_on(6, strategy)
        asked = evaluator(EIGHT, ranks=6, default=plan)
        whole = replay_strategy(asked.graph, plan.strategy, asked.topology)
        assert asked.evaluate(plan).iteration_s == pytest.approx(whole.iteration_s)
    first, *others = asked.graph.ranks
    slow = StepGraph((first, *(replace(rank, start_s=0.01) for rank in others)))
    assert replace(asked, graph=slow, _costs={}).evaluate(plan).iteration_s > asked.evaluate(plan).iteration_s


def test_modules_that_the_step_does_not_have_are_refused():
    asked = evaluator(EIGHT)
    with pytest.raises(CdmppError, match="plan.recompute names 'layer.99', no module of this step; nearest: layer"):
        asked.evaluate(plan_on(2, recompute=("layer.99",)))


def test_modules_to_recompute_are_named_as_the_users_model_has_them():
    """A model that makes its own loss is kept inside a module of this package, whose prefix nobody has to know."""
    asked = evaluator(EIGHT)
    inside = tuple(
        replace(one, modules=tuple(replace(own, name=f"inner.{own.name}") for own in one.modules))
        for one in asked.graph.ranks
    )
    wrapped = replace(asked, graph=replace(asked.graph, ranks=inside), _costs={})
    name = asked.graph.ranks[0].modules[2].name
    plain, plan = plan_on(2), plan_on(2, recompute=(name,))
    assert wrapped.evaluate(plan) == wrapped.evaluate(plan_on(2, recompute=(f"inner.{name}",)))
    assert wrapped.evaluate(plan).iteration_s == asked.evaluate(plan).iteration_s > asked.evaluate(plain).iteration_s
    with pytest.raises(CdmppError, match=f"no module of this step; nearest: {name}"):
        wrapped.evaluate(plan_on(2, recompute=(f"{name}x",)))


def test_a_search_of_hsdp_finds_what_is_best_of_its_settings():
    """Two replicas of four ranks: parameters that stay gathered save the second gather, and there is memory for it."""
    default = plan_from_dict({"strategy": "hsdp", "degrees": {"dp_replicate": 2, "dp_shard": 4}})
    asked = evaluator(layers((4 * MIB,) * 6, (1e-3,) * 6), 8, default=default)
    found = search(asked)
    assert found.iteration_s < found.default_cost.iteration_s
    for reshard in (False, True):
        plan = replace(default, strategy=replace(default.strategy, reshard_after_forward=reshard))
        assert found.iteration_s <= asked.evaluate(plan).iteration_s
