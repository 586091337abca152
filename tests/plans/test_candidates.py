"""Enumeration of plans: degrees, micro-batches, and the reason why a plan cannot be."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest

from cdmpp.errors import UsageError
from cdmpp.plans.candidates import VALID, candidates, divisors, factors, searched
from cdmpp.plans.combinations import Combination, asked, combination, combination_of, combinations, usual
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.plan import Plan
from cdmpp.plans.schedules import SCHEDULES
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.steps.schedule import FORWARD


def test_divisors_and_factors():
    assert divisors(12) == (1, 2, 3, 4, 6, 12)
    assert divisors(1) == (1,)
    assert sorted(factors(12, 2)) == [(2, 6), (3, 4), (4, 3), (6, 2)]
    assert list(factors(7, 2)) == []
    assert list(factors(8, 3)) == [(2, 2, 2)]


@pytest.mark.parametrize("ranks", [1, 2, 12, 30])
def test_degrees_multiply_to_the_ranks_and_batches_to_the_global_one(ranks):
    plans = candidates(combinations(["data", "fsdp"]), ranks, 120, {})
    assert (plans.reason == VALID).all() and (plans.degree("dp_replicate", "dp_shard") == ranks).all()
    assert (plans.micro_batch * plans.micro_batches * ranks == 120).all()
    rows = np.column_stack([plans.combination, plans.degrees, plans.micro_batches, plans.recompute])
    assert len(np.unique(rows, axis=0)) == len(plans)


def test_counts():
    plans = candidates(combinations(["data"]), 4, 64, {}, can_recompute=False)
    assert sorted(plans.micro_batches) == [1, 2, 4, 8, 16]
    assert len(candidates(combinations(["data"]), 4, 64, {})) == 10  # with and without recomputing
    assert set(candidates(combinations(["fsdp"]), 4, 64, {}).micro_batches) == {1, 2, 4, 8, 16}


def test_schedules_that_order_one_micro_batch_alike_are_one_plan():
    """Two divisors of 2, each with and without recomputing: two schedules of 2 micro-batches, one of a single one."""
    plans = candidates(combinations(["pipeline"]), 4, 2, {"pp": 8}, [SCHEDULES[name]() for name in ("gpipe", "1f1b")])
    assert sorted(plans.micro_batches) == [1, 1, 2, 2, 2, 2]
    assert set(plans.schedule[plans.micro_batches == 1]) == {0}


def test_schedules_of_several_stages_a_rank_are_searched_with_few_and_with_twice_as_many():
    plans = candidates(combinations(["pipeline"]), 4, 8, {"pp": 16}, can_recompute=False)
    many = Counter(
        (plans.schedules[number].name, plans.schedules[number].stages_per_rank)
        for number in plans.schedule[(plans.micro_batches == 8) & (plans.reason == VALID)]
    )
    assert many == dict.fromkeys(
        [("gpipe", 1), ("1f1b", 1), ("interleaved1f1b", 2), ("interleaved1f1b", 4), ("interleavedzerobubble", 1),
         ("interleavedzerobubble", 2), ("zbvzerobubble", 2), ("dualpipev", 2)], 1,
    )  # fmt: skip
    alone = plans.schedule[plans.micro_batches == 1]
    assert [plans.schedules[number].name for number in alone] == ["gpipe"]


@pytest.mark.parametrize("order", searched(), ids=lambda one: f"{one.name}-{one.stages_per_rank}")
def test_a_stage_that_runs_all_forward_passes_first_is_known_without_its_list(order):
    for ranks, many in product((2, 3, 4, 8), range(1, 33)):
        if order.why_not(ranks, many):
            continue
        stages = [
            [one.kind for one in order.actions(rank, ranks, many) if one.stage == stage]
            for rank in range(ranks)
            for stage in order.stages_of(rank, ranks)
        ]
        first = many > 1 and any(set(kinds[:many]) == {FORWARD} for kinds in stages)
        assert order.is_forward_first(ranks, many) is first, (ranks, many)


@pytest.mark.parametrize("name", ["data", "zero1", "fsdp"])
def test_plans_at_which_pytorch_stops_are_left_out_by_reason(name):
    """DistributedDataParallel stops under GPipe; 1F1B wants a micro-batch a stage, and DDP one more."""
    orders = [SCHEDULES[one]() for one in ("gpipe", "1f1b")]
    every, torch = (
        candidates(combinations([f"{name}+pipeline"]), 8, 32, {"pp": 4}, orders, False, one) for one in (False, True)
    )
    assert (every.reason == VALID).all() and len(every) == len(torch)
    found = {
        (torch.degrees_of(row).pp, orders[torch.schedule[row]].name, int(torch.micro_batches[row])): torch.why_not(row)
        for row in range(len(torch))
    }
    for (stages, order, many), why in found.items():
        few = order == "1f1b" and many < stages
        fails = name != "fsdp" and many > 1 and (order == "gpipe" or many <= stages)
        told = "PyTorch refuses 1f1b" if few else "DistributedDataParallel fails in the second step" if fails else ""
        assert bool(why) is (few or fails) and told in why, (stages, order, many)
    assert len({why for why in found.values() if why}) >= (1 if name == "fsdp" else 3)


def test_one_device_has_one_way_to_train():
    plans = candidates(combinations(["pipeline", "zero1", "fsdp"]), 1, 4, {"pp": 8}, can_recompute=False)
    assert [plans.combinations[one].name for one in plans.combination] == ["zero1"] * 3


def test_a_strategy_that_adds_up_no_gradients_has_one_micro_batch():
    class AddsNothing(DDP):
        can_accumulate = False

    one = Combination("data", AddsNothing(), (), ("dp_replicate",))
    assert set(candidates([one], 4, 64, {}).micro_batches) == {1}


@pytest.mark.parametrize("name", ["data", "zero1", "zero2", "fsdp", "hsdp", "pipeline", "fsdp+pipeline", "data+filter"])
def test_a_plan_is_called_by_the_words_of_its_strategies(name):
    one = combination(name)
    plan = Plan(one.strategy, ParallelDegrees(**dict.fromkeys(one.degrees, 2)), model_parallel=one.model_parallel)
    assert combination_of(plan) == name


def test_reasons_have_their_numbers():
    few = candidates(combinations(["data"]), 128, 64, {})
    assert [few.why_not(row) for row in range(len(few))] == ["64 examples cannot be divided evenly among 128 replicas"]
    limited = candidates(combinations(["data"]), 8, 64, {"dp_replicate": 4})
    assert limited.why_not(0) == "data parallelism over replicas over 8 ranks: this network allows 4"
    assert candidates(combinations(["data"]), 8, 64, {}).why_not(0) == ""


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("dta", "unknown strategy 'dta'; nearest: data"),
        ("data+spatail", "unknown strategy 'spatail' in data+spatail"),
        ("data+fsdp", "ddp and fsdp both say how replicas keep parameters alike"),
        ("", "unknown strategy ''"),
    ],
)
def test_words_that_cannot_be(name, told):
    with pytest.raises(UsageError) as error:
        combination(name)
    assert told in str(error.value)


def test_strategies_of_two_names_are_kept_once():
    names = ["data", "ddp", "pipeline+data", "data+pipeline", "zero1", "fsdp", "zero3"]
    assert [one.name for one in combinations(names)] == ["data", "pipeline+data", "zero1", "fsdp"]
    every = usual({"pp": 8, "filter": 8, "channel": 8, "spatial": 8})
    assert tuple(one.name for one in combinations(every)) == every


def test_the_usual_strategies_suit_the_network():
    assert "data" in usual({}) and not any("spatial" in name or "pipeline" in name for name in usual({}))


def test_words_of_degrees_are_those_of_all_hybrids():
    """Of ep, tp, pp and fsdp each choice; of tp and sp, or fsdp and data, one at most."""
    every = asked("ep,tp,pp,fsdp")
    assert len(every) == 15 and {*every} >= {"ep", "fsdp", "ep+tp", "tp+pp+fsdp", "ep+tp+pp+fsdp"}
    assert every == asked("ep * tp * pp * fsdp") and [one.name for one in combinations(every)] == [*every]
    assert asked("data,spatial,data+filter") == ("data", "spatial", "data+filter") and asked("tp") == ("tp",)
    assert asked("fsdp*data*tp") == ("fsdp", "data", "tp", "fsdp+tp", "data+tp")
    assert asked("tp*sp") == ("tp", "sp") and asked("data,fsdp*tp") == ("data", "fsdp", "tp", "fsdp+tp")
    assert asked("") == () and asked("fsdp+tp*pp") == ("fsdp+tp", "pp", "fsdp+tp+pp")
    with pytest.raises(UsageError, match="unknown strategy 'xp' in ep.xp"):
        asked("ep,xp")
    found = usual({"pp": 8, "ep": 8, "cp": 64, "tp": 8})
    assert {*found} >= {"data+expert", "fsdp+context", "fsdp+expert+pipeline"} and "data+expert" not in usual({"ep": 1})


@pytest.mark.parametrize("name", ["ps", "ps+pipeline"])
def test_parameter_servers_are_refused_with_the_reason(name):
    with pytest.raises(UsageError, match="parameter servers have no closed form"):
        combination(name)
