"""The whole question: ranking, memory, limits, the Pareto front, scaling, and why a plan is slower."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted, topology_of
from cdmpp.errors import InfeasiblePlanError, UsageError
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.front import on_front
from cdmpp.plans.lower import lower
from cdmpp.plans.oracle import REPLAY, ask
from cdmpp.plans.placement import micro_batch_of
from cdmpp.plans.plan import Plan, plan_on
from cdmpp.plans.plan_file import read_plan, save_plan
from cdmpp.plans.plan_words import words
from cdmpp.plans.proposals import proposals
from cdmpp.plans.question import Question
from cdmpp.plans.refine import LoweredEvaluator, refine
from cdmpp.plans.scaling import next_limits, points
from cdmpp.plans.search import search
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.twins import SAME
from cdmpp.report.oracle import oracle_report
from cdmpp.report.text import text_of
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import StepGraph
from tests.plans.toy_source import ToySource

NAMES = ("data", "fsdp", "pipeline", "data+pipeline", "filter", "data+filter")


def _links(ranks):
    return fitted(AlphaBeta(1e-5, 1e-10), ranks, "nccl")


def _question(**options):
    return Question(
        ToySource(forward_s=1e-4), _links, **{"ranks": 8, "global_batch": 32, "strategies": NAMES, **options}
    )


def test_the_best_plans_are_replayed_and_ranked_by_it():
    question = _question()
    found = ask(question, top=5, replays=6)
    first = [one for one in found.ranked if one.by == REPLAY]
    assert len(first) >= 6 and [one.step_s for one in first] == sorted(one.step_s for one in first)
    for one in first[:3]:
        lowered = lower(question.source, one.plan, _links(8), 32)
        assert one.step_s == pytest.approx(replay(lowered.graph, _links(8)).step_s, rel=1e-9)
        assert one.low_s < one.step_s < one.high_s
        assert one.device_hours == pytest.approx(8 * one.step_s * 1000 / 3600)
    best = min(found.judged.costs.step_s[found.judged.fits])
    assert found.best.step_s <= 1.06 * best


def test_so_many_plans_are_shown_as_are_asked_for():
    found = ask(_question(), top=3, replays=6)
    report = oracle_report(found)
    assert len(found.ranked) >= 6 and [one["rank"] for one in report.tables[0].rows] == ["1", "2", "3"]
    assert len(report.answer["plans"]) == 3 and found.named("5") is found.ranked[4]


def test_words_of_a_plan_say_how_many_micro_batches_of_how_many_examples():
    plan = Plan(DDP(), ParallelDegrees(dp_replicate=4), 2)
    assert words(plan, "data", 8) == "data (dp_replicate 4), 2 micro-batches of 8"
    assert words(plan_on(4), "data", 8) == "data (dp_replicate 4), micro-batch of 8"


def test_no_plan_that_may_be_faster_than_the_best_is_left_without_a_replay():
    """Two replays take twice as long as the closed form says: plans less than twice as slow are replayed, too."""

    def slow(question, one):
        return replace(one, step_s=1.5 * one.step_s, by=REPLAY)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cdmpp.plans.oracle.replayed_plan", slow)
        found = ask(_question(), replays=2)
        assert [one.by for one in found.ranked][:4] == [REPLAY] * 4
    assert "Replayed plans stand before" in oracle_report(found).tables[0].caption


def test_a_plan_of_any_strategies_that_fit_is_explained():
    """The ratio is of one method where the other plan was not replayed."""
    found = ask(_question(), top=1, replays=1)
    assert "filter" not in {one.combination for one in found.ranked}
    told = oracle_report(found, explained="filter").tables[1]
    own_s, best_s = (sum(row[key] for row in told.rows) for key in ("own_s", "best_s"))
    assert f"takes {own_s / best_s:.2f} times" in told.title and f"says {own_s / best_s:.2f} times" in told.caption


def test_the_same_question_has_the_same_answer():
    first, second = ask(_question(), replays=3), ask(_question(), replays=3)
    assert [one.to_dict() for one in first.ranked] == [one.to_dict() for one in second.ranked]


def test_a_limit_of_memory_drops_plans_and_says_so():
    free = ask(_question(), replays=0)
    limit = float(np.median(free.judged.costs.memory_bytes[free.judged.fits]))
    found = ask(_question(memory_limit_bytes=limit), replays=0)
    assert all(one.memory_bytes <= limit for one in found.ranked)
    assert found.rejected["needs more memory than a device has"] > 0


def test_nothing_that_fits_says_what_is_missing_and_what_would_help():
    need = ask(_question(strategies=("data",)), replays=0).judged.costs.memory_bytes
    limit = float(np.nanmin(need)) / 2
    with pytest.raises(InfeasiblePlanError) as error:
        ask(_question(strategies=("data",), memory_limit_bytes=limit))
    assert "the leanest plan for 8 devices, data (dp_replicate 8)," in str(error.value)
    assert "too much" in str(error.value) and "would fit on 8 devices" in str(error.value)
    one = r"[\w ]+ [\d.]+ .?B"
    assert re.search(rf"most of it: {one}, {one} and {one}; what would help: ", str(error.value))
    with pytest.raises(InfeasiblePlanError, match="fewer|smaller"):
        ask(_question(memory_limit_bytes=1.0))


def test_a_batch_that_is_too_small_is_refused_with_the_numbers():
    with pytest.raises(InfeasiblePlanError) as error:
        ask(_question(strategies=("data",), global_batch=4))
    assert "4 examples cannot be divided evenly among 8 replicas" in str(error.value)


def test_a_step_waits_for_its_examples():
    """32 examples at 1,000 a second take 32 ms; plans that take longer are as they were."""
    free, found = (
        ask(_question(input_samples_per_s=rate), top=1000, replays=6, counts=(1, 8)) for rate in (None, 1000.0)
    )
    assert free.best.step_s < 32e-3 < free.ranked[-1].step_s
    before = {one.words: one for one in free.ranked}
    assert {one.words for one in found.ranked} < set(before)
    left = set(before) - {one.words for one in found.ranked}  # of two that wait as long, the one that recomputes
    assert len(left) == found.rejected[SAME] and all(words.endswith(", recomputed") for words in left)
    assert {words.removesuffix(", recomputed") for words in left} < set(before) - left
    for one in found.ranked:
        own = before[one.words]
        if own.by == one.by:
            assert one.step_s == max(own.step_s, 32e-3) and one.high_s == max(own.high_s, 32e-3)
        assert (one.limit == "input pipeline") == (one.step_s == 32e-3) and one.low_s >= 32e-3
        assert one.limit == own.limit or one.limit == "input pipeline"
        assert sum(one.terms.values()) == pytest.approx(max(sum(own.terms.values()), 32e-3))
    assert found.best.limit == "input pipeline"
    assert refine(_question(input_samples_per_s=1000.0), found.best.plan).iteration_s == 32e-3
    for one, own in zip(found.scaling, free.scaling, strict=True):
        if own.step_s < 32e-3:
            assert (one.step_s, one.limit) == (32e-3, "input pipeline")
    assert any(one.limit == "input pipeline" for one in found.scaling)
    later = [one.next_limit for one in ask(_question(input_samples_per_s=1000.0, ranks=2), replays=0).ranked]
    assert any(text.startswith("input pipeline at ") for text in later)


def test_terms_add_up_and_explain_the_difference():
    found = ask(_question(), replays=0)
    for one in found.ranked:
        assert sum(one.terms.values()) == pytest.approx(one.step_s)
    slow = found.ranked[-1]
    told = found.explain(str(len(found.ranked)))
    assert sum(own - best for _, own, best in told) == pytest.approx(slow.step_s - found.best.step_s)
    assert found.named(found.best.combination) is found.best
    for asked in ("0", "99", "sideways"):
        with pytest.raises(UsageError):
            found.named(asked)


def test_the_next_limit_names_the_devices():
    found = ask(_question(strategies=("data",)), replays=0)
    assert found.best.next_limit.endswith("devices")
    same = next_limits(_question(strategies=("data",), global_batch=2**16), ("data",))
    assert same == {"data": "the same up to 512 devices"}
    judged = _question(strategies=("data",)).judged(64)
    assert not judged.fits.any()  # 32 examples
    assert int(found.best.next_limit.split()[-2]) in (16, 32, 64)


def test_next_limits_are_those_of_the_best_plan_and_of_all_with_a_scaling_curve():
    few, every = (ask(_question(), replays=0, counts=counts) for counts in ((), (8,)))
    best = few.best.combination
    assert {one.combination for one in few.ranked if one.next_limit} == {best}
    told = {one.combination for one in every.shown}
    assert {one.combination for one in every.ranked if one.next_limit} >= told > {best}
    assert every.best.next_limit == few.best.next_limit


@pytest.mark.parametrize(
    "options", [{}, {"memory_limit_bytes": 1.4e8}, {"memory_limit_bytes": 9e7}, {"input_samples_per_s": 3000.0}]
)
@pytest.mark.parametrize("ranks", [4, 16])
def test_plans_that_cannot_lead_are_not_judged_and_the_fastest_stay(ranks, options):
    """A bound by the passes alone leaves plans out; the best plan of each combination, its memory and limit stay."""
    question = _question(**options)
    every, leading = question.judged(ranks, NAMES), question.leading(ranks, NAMES)
    assert leading is every  # known already
    leading = replace(question, _judged={}).leading(ranks, NAMES)
    assert repr(points(leading)) == repr(points(every))
    left_out = np.isnan(leading.costs.step_s) & ~np.isnan(every.costs.step_s)
    assert left_out.sum() > 10
    kept = ~left_out
    assert np.array_equal(leading.costs.step_s[kept], every.costs.step_s[kept], equal_nan=True)
    assert leading.costs.errors == every.costs.errors


def test_the_scaling_curve_has_all_counts_and_names_limits():
    found = ask(_question(strategies=("data", "filter")), replays=0, counts=(1, 2, 4, 64, 128))
    data = {one.ranks: one for one in found.scaling if one.combination == "data"}
    assert data[1].step_s == pytest.approx(8 * 3e-4 * 32 + 1e-4, rel=1e-3)
    assert np.isnan(data[64].step_s) and data[64].limit == "samples per rank"
    filters = {one.ranks: one for one in found.scaling if one.combination == "filter"}
    assert filters[128].limit == "smallest layer"


def test_the_front_is_not_dominated():
    costs = np.array([[1, 5], [2, 3], [3, 4], [2, 3], [5, 1]])
    assert list(on_front(costs)) == [True, True, False, True, True]
    found = ask(_question(), replays=0)
    best = found.front[0]
    fits = found.judged.fits
    assert best.step_s == pytest.approx(found.judged.costs.step_s[fits].min())
    assert min(one.memory_bytes for one in found.front) == found.judged.costs.memory_bytes[fits].min()


def test_plans_go_to_files_and_back(tmp_path):
    for one in ask(_question(), top=40, replays=0).ranked:
        save_plan(one.plan, tmp_path / "plan.yaml")
        assert read_plan(tmp_path / "plan.yaml") == one.plan


def test_the_report_has_everything():
    found = ask(_question(), replays=2, counts=(1, 2, 4, 8))
    report = oracle_report(found, 2.0, "filter")
    shown = text_of(report)
    for told in ("Best of", "Why filter", "Pareto front", "device-hours", "replay", "closed form"):
        assert told in shown
    assert len(report.charts) == 3
    assert report.answer["plans"][0]["money"] == pytest.approx(2 * found.best.device_hours)
    assert replace(report, title="x").answer["front"]


@pytest.mark.parametrize("name", ["data", "fsdp", "data+pipeline", "filter", "zero1"])
def test_the_best_plan_is_refined_by_the_search_of_its_settings(name):
    question = _question(strategies=(name,))
    found = ask(question, replays=1)
    searched = refine(question, found.best.plan)
    assert searched.default_iteration_s == pytest.approx(found.best.step_s, rel=1e-6)
    assert searched.iteration_s <= searched.default_iteration_s
    assert searched.default_cost.peak_bytes == pytest.approx(found.best.memory_bytes, rel=1e-3)
    assert searched.plan.degrees == found.best.plan.degrees
    assert searched.plan.gradient_accumulation_steps == found.best.plan.gradient_accumulation_steps


@pytest.mark.parametrize("name", ["data", "data+pipeline"])
def test_no_exchanges_of_replicas_bound_all_settings_of_them(name):
    """Where they leave less to gain than counts, none of the settings is replayed."""
    question = _question(strategies=(name,))
    plan = ask(question, replays=1).best.plan
    work = question.source.work(micro_batch_of(plan, question.global_batch), plan.degrees, plan.model_parallel)
    graph, topology = StepGraph((replace(work.rank, rank=0),)), question.topology_of(plan)
    evaluator = LoweredEvaluator(graph, topology, plan, work=work)
    least_s = evaluator.least_s(plan, "communication")
    tried = [
        other for one in proposals(plan, evaluator.space) if one.cause == "communication" for other in one.plans
    ]  # fmt: skip
    assert 0 < least_s <= min(evaluator.evaluate(other).iteration_s for other in (plan, *tried))
    assert evaluator.least_s(plan, "update") == 0.0

    class Bounded(LoweredEvaluator):
        def least_s(self, plan, cause):
            return self.evaluate(plan).iteration_s

    kinds = LoweredEvaluator, Bounded
    steps = [[step.cause for step in search(kind(graph, topology, plan, work=work)).steps] for kind in kinds]
    assert "communication" in steps[0] and "communication" not in steps[1]


def test_batches_that_share_a_given_global_batch_make_it_no_larger():
    searched = refine(_question(strategies=("data",)), Plan(DDP(), ParallelDegrees(dp_replicate=8), 4))
    assert searched.plan.gradient_accumulation_steps == 4
    assert not any("times as large" in one for one in searched.warnings)


@pytest.mark.parametrize(
    ("strategies", "batch", "why"),
    [
        ("pipeline", 2, "1f1b: PyTorch refuses 1f1b with 2 micro-batches on 4 stages"),
        ("data+pipeline", 32, "gpipe: PyTorch's DistributedDataParallel fails in the second step"),
    ],
)
def test_plans_at_which_pytorch_stops_are_left_out_by_reason(strategies, batch, why):
    told = why.partition(": ")[2]
    for is_torch in (True, False):
        asked = _question(strategies=(strategies,), ranks=4, global_batch=batch, is_torch=is_torch)
        found = ask(asked, top=1000, replays=1000)
        assert any(one.startswith(why) for one in found.rejected) is is_torch
        assert found.ranked
        assert any(text.startswith(told) for one in found.ranked for text in one.warnings) is not is_torch


def test_a_cluster_of_other_devices_is_said():
    topology = topology_of(8, "a100", "dgx-h100")
    assert topology.warnings == ("cluster dgx-h100 has h100, and kernels are those of a100",)
    assert topology_of(8, "h100", "dgx-h100").warnings == ()
