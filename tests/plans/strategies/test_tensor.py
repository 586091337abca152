"""Tensor parallelism: ranks compute what one does, with their parts of weights, heads and activations."""

from __future__ import annotations

import pytest
import torch
from plans.sources.toy_source import source_of
from plans.strategies.divided_ranks import Ranks
from plans.strategies.transformers_small import Language, tokens
from torch import nn

from cdmpp.errors import CdmppError
from cdmpp.network.eager.step import export_step
from cdmpp.network.workload import Workload
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.distributed_step import replay_plan
from cdmpp.plans.plan import Plan
from cdmpp.plans.strategies import STRATEGIES

KINDS = ("fused", "gated", "cross")


def divided(network: nn.Module, ranks: int, **settings):
    torch.manual_seed(0)
    step = export_step(Workload(network, tokens(), mode="training_step"))
    found = STRATEGIES["tensor"](**settings).divide(step.exported, ranks).along("tp", step.exported)
    return step, found, Ranks(step, found, {"tp": ranks})


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_compute_what_one_does(kind, ranks):
    step, _, job = divided(Language(kind), ranks)
    names = [name for name, one in step.exported.state_dict.items() if one.requires_grad]
    for name in names:
        job.state[name].requires_grad_()
    losses = job.run()
    whole = step.exported.module()
    (expected,) = whole(*step.exported.example_inputs[0])
    assert [one.item() for one in losses] == pytest.approx([expected.item()] * ranks, rel=1e-5)
    got = torch.autograd.grad(sum(losses) / ranks, [job.state[name] for name in names])
    expected = torch.autograd.grad(expected, [dict(whole.named_parameters())[name] for name in names])
    for name, one, other in zip(names, got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5, msg=name)


COLUMNS = {"fused": ("qkv", "up"), "gated": ("wq", "wk", "wv", "gate", "up"), "cross": ("q", "k", "v", "bias", "wi")}
ROWS = {"fused": ("proj", "down"), "gated": ("wo", "down"), "cross": ("o", "wo")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_has_its_part_of_columns_and_rows(kind):
    network = Language(kind)
    source, ranks = source_of(network, tokens()), 2
    one, whole = source.work(4, ParallelDegrees(tp=ranks)), source.work(4, ParallelDegrees())
    sizes = {gradient.name: gradient.bytes for gradient in one.rank.gradients}
    for gradient in whole.rank.gradients:
        layer, what = gradient.name.split(".")[-2:]
        is_divided = layer in COLUMNS[kind] or (layer in ROWS[kind] and what == "weight")
        assert sizes[gradient.name] == gradient.bytes / (ranks if is_divided else 1), gradient.name
    assert one.memory.parameter_bytes == one.memory.gradient_bytes == sum(sizes.values())
    assert one.memory.state_bytes == 2 * sum(sizes.values())
    divided_bytes = sum(one.bytes for one in whole.rank.gradients) - one.memory.parameter_bytes
    parts = sum(
        one.bytes
        for one in whole.rank.gradients
        if one.name.split(".")[-2] in COLUMNS[kind] or (one.name.split(".")[-2:] in [[r, "weight"] for r in ROWS[kind]])
    )
    assert divided_bytes == parts - parts // ranks, "parts of all ranks are the whole"


@pytest.mark.parametrize(("kind", "backward"), [("fused", 2), ("gated", 5), ("cross", 4)])
def test_rows_sum_up_outputs_and_each_column_the_gradient_of_its_input(kind, backward):
    work = source_of(Language(kind), tokens()).work(4, ParallelDegrees(tp=2))
    ops = work.rank.ops
    phases = [ops[one.before[0]].phase for one in work.exchanges]
    assert phases == ["forward"] * 2 + ["backward"] * backward
    assert {(one.kind, one.bytes, one.degree) for one in work.exchanges} == {("all_reduce", 4 * 4 * 8 * 32, "tp")}
    assert all(one.after < place for one in work.exchanges for place in one.before)


def test_one_rank_is_a_step_on_one_device():
    source = source_of(Language("gated"), tokens())
    plan = Plan(model_parallel=(STRATEGIES["tensor"](),))
    replayed = replay_plan(source, plan, 4, device="t4", link="pcie4")
    rank = source.work(4, ParallelDegrees()).rank
    assert replayed.iteration_s == pytest.approx(
        rank.start_s + rank.tail_s + sum(op.duration_s + op.gap_s for op in rank.ops)
    )


def test_what_cannot_be_divided_evenly_is_refused_with_the_rule():
    source = source_of(Language("gated"), tokens())
    assert source.limits()["tp"] == 4
    for ranks in (3, 8):
        with pytest.raises(CdmppError, match=rf"tensor={ranks}: blocks.0.wk gives 4 heads, .* expected 1, 2, 4 ranks"):
            source.work(4, ParallelDegrees(tp=ranks))
    source = source_of(nn.Linear(8, 4), torch.randn(4, 8))
    assert source.limits()["tp"] == 1
    with pytest.raises(CdmppError, match="tensor=2: the network has no pair of linear layers"):
        source.work(4, ParallelDegrees(tp=2))
