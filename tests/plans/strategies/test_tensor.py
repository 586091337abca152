"""Tensor parallelism: ranks compute what one does, with their parts of weights, heads and activations."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from plans.sources.toy_source import source_of
from plans.strategies.divided_ranks import Ranks, check_gradients
from plans.strategies.parallelized import COLUMNS, ROWS
from plans.strategies.transformers_small import Language, by_heads, tokens
from torch import nn

from cdmpp.collectives.topology import topology_of
from cdmpp.errors import CdmppError
from cdmpp.network.eager.step import export_step
from cdmpp.network.workload import Workload
from cdmpp.operators.aten import name_of
from cdmpp.plans.candidates import candidates
from cdmpp.plans.combinations import Combination
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.distributed_step import replay_plan
from cdmpp.plans.few_heads import FEW_HEADS
from cdmpp.plans.judge import Judge
from cdmpp.plans.lower import lower
from cdmpp.plans.plan import Plan
from cdmpp.plans.search_plans import search_plans
from cdmpp.plans.sources.source import StepSource
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.tensor_graph import ASYNC_IS_MODELLED

KINDS = ("fused", "gated", "cross")
SCRIPT = Path(__file__).with_name("parallelized.py")
"""It runs a network under ``parallelize_module`` on gloo, and prints what rank 0 exchanged and computed."""


def divided(network: nn.Module, ranks: int, **settings):
    torch.manual_seed(0)
    step = export_step(Workload(network, tokens(), mode="training_step"))
    found = STRATEGIES["tensor"](**settings).divide(step.exported, ranks).along("tp", step.exported)
    return step, found, Ranks(step, found, {"tp": ranks})


SETTINGS = [
    {"vocabulary": False}, {}, {"loss_parallel": False}, {"sequence_parallel": True},
    {"sequence_parallel": True, "vocabulary": False, "shared_inputs": True},
]  # fmt: skip


@pytest.mark.parametrize(("kind", "ranks"), [*((kind, ranks) for kind in KINDS for ranks in (2, 4)), ("biased", 2)])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_ranks_compute_what_one_does(kind, ranks, settings):
    *_, job = divided(Language(kind), ranks, **settings)
    check_gradients(job)


@pytest.mark.parametrize("kind", [*KINDS, "biased"])
def test_a_rank_has_its_part_of_columns_and_rows(kind):
    network = Language(kind)
    source, ranks = source_of(network, tokens()), 2
    one, whole = source.work(4, ParallelDegrees(tp=ranks)), source.work(4, ParallelDegrees())
    sizes = {gradient.name: gradient.bytes for gradient in one.rank.gradients}
    names = [name.removeprefix("blocks.0.") for name in sizes]
    divided_names = {*COLUMNS[kind], *ROWS[kind], "words", "head", *(["bias"] if kind == "cross" else [])}
    parts = 0
    for name, gradient in zip(names, whole.rank.gradients, strict=True):
        layer, _, what = name.rpartition(".")
        is_divided = layer in divided_names and not (layer in ROWS[kind] and what == "bias")
        parts += gradient.bytes * is_divided
        assert sizes[gradient.name] == gradient.bytes / (ranks if is_divided else 1), name
    assert one.memory.parameter_bytes == one.memory.gradient_bytes == sum(sizes.values())
    assert one.memory.state_bytes == 2 * sum(sizes.values())
    assert whole.memory.parameter_bytes - one.memory.parameter_bytes == parts - parts // ranks


def planned(kind: str, ranks: int, options: str):
    """What the plan has of the same, with the optimizer among the options."""
    given = options.split()
    settings = {
        "vocabulary": "words" in given, "loss_parallel": "loss" in given,
        "sequence_parallel": "sequence" in given, "shared_inputs": "shared" in given,
    }  # fmt: skip
    optimizer = next((one.removeprefix("optimizer=") for one in given if "=" in one), "adamw-for-loop")
    optimizer = {"fused": "adamw-fused", "foreach": "adamw-foreach"}.get(optimizer, optimizer)
    source = source_of(Language(kind), tokens(), optimizer=optimizer)
    return source.work(2, ParallelDegrees(tp=ranks), (STRATEGIES["tensor"](**settings),))


def exchanged(work) -> list[tuple[str, str, int]]:
    return [(work.rank.ops[one.before[0]].phase, one.kind, one.bytes) for one in work.exchanges]


def counts(kinds: str) -> list[tuple[str, str, int]]:
    """Read ``F RS2048 AG2048 B 2AR64``: phase, number, kind and bytes."""
    words = {"F": "forward", "B": "backward", "U": "update"}
    known = {"AR": "all_reduce", "AG": "all_gather", "RS": "reduce_scatter"}
    found, phase = [], ""
    for word in kinds.split():
        if word in words:
            phase = words[word]
            continue
        many, kind, size = re.fullmatch(r"(\d*)(AR|AG|RS)(\d+)", word).groups()
        found += [(phase, known[kind], int(size))] * int(many or 1)
    return found


GOLDEN = [
    ("fused", 2, "", "F 2AR2048 B 2AR2048"),
    ("fused", 2, "words loss", "F 3AR2048 3AR64 B 3AR2048"),
    ("gated", 2, "words", "F 3AR2048 AG4096 B 6AR2048"),
    ("gated", 2, "words loss", "F 3AR2048 3AR64 B 6AR2048"),
    ("cross", 2, "words loss", "F 3AR2048 3AR64 B 5AR2048"),
    ("gated", 2, "words loss shared", "F 3AR2048 3AR64 B 3AR2048"),
    ("fused", 2, "sequence words loss",
     "F RS2048 AG2048 RS2048 AG2048 RS2048 AG2048 3AR64 "
     "B RS2048 AG2048 RS2048 AG2048 RS2048 AG1024 AG2048 U 18AR128"),
    ("gated", 4, "sequence words loss optimizer=fused",
     "F RS2048 3AG2048 RS2048 2AG2048 RS2048 AG2048 3AR64 "
     "B RS2048 AG2048 2RS2048 AG2048 3RS2048 AG2048 U 3AR128"),
    ("gated", 2, "sequence words loss optimizer=sgd",
     "F RS2048 3AG2048 RS2048 2AG2048 RS2048 AG2048 3AR64 "
     "B RS2048 AG2048 2RS2048 AG2048 3RS2048 AG2048 U 3AR128"),
    ("gated", 2, "sequence words optimizer=foreach",
     "F RS2048 3AG2048 RS2048 2AG2048 RS2048 AG2048 AG4096 "
     "B RS2048 AG2048 2RS2048 AG2048 3RS2048 AG2048 U 9AR128"),
    ("gated", 2, "sequence words loss shared",
     "F RS2048 AG2048 RS2048 AG2048 RS2048 AG2048 3AR64 B RS2048 AG2048 RS2048 AG2048 RS2048 AG2048 U 9AR128"),
    ("cross", 2, "sequence words loss",
     "F RS2048 3AG2048 RS2048 AG2048 RS2048 AG2048 3AR64 B RS2048 AG2048 RS2048 AG2048 3RS2048 AG2048 U 9AR128"),
]  # fmt: skip
"""What ``parallelize_module`` of torch 2.13 exchanges, recorded on gloo by ``parallelized.py``."""


@pytest.mark.parametrize(("kind", "ranks", "options", "expected"), GOLDEN, ids=lambda one: str(one)[:40])
def test_exchanges_are_those_of_parallelize_module(kind, ranks, options, expected):
    work = planned(kind, ranks, options)
    assert exchanged(work) == counts(expected)
    assert all(one.after < place for one in work.exchanges for place in one.before)
    assert {one.degree for one in work.exchanges} == {"tp"}


@pytest.mark.parametrize(
    ("kind", "ranks", "options"),
    [
        ("gated", 2, "sequence words loss"),
        ("fused", 4, "words loss"),
        ("biased", 2, "words loss optimizer=sgd"),
        ("biased", 2, "sequence words loss"),
        ("fused", 2, "sequence words loss"),
    ],
)
def test_a_real_run_exchanges_and_computes_what_is_planned(kind, ranks, options, forked_jobs):
    real = json.loads(forked_jobs.run(SCRIPT, kind, str(ranks), *options.split()).splitlines()[-1])
    _, local, _ = divided(Language(kind), ranks, sequence_parallel="sequence" in options)
    assert [tuple(one) for one in real["collectives"]] == exchanged(planned(kind, ranks, options))
    shapes = {name.removeprefix("inner."): list(one) for name, one in local.shapes.items()}
    assert {name: real["parameters"][name] for name in shapes} == shapes
    products = sorted(
        [one for one in shapes if len(one) == 2]
        for phase, name, shapes in real["calls"]
        if phase == "forward" and name in ("mm", "addmm")
    )
    own = sorted(
        [[math.prod(x.shape[:-1]), x.shape[-1]], [*reversed(weight.shape)]]
        for node in local.graph.nodes
        if name_of(node) == "linear"
        for x, weight in ([one.meta["val"] for one in node.args[:2]],)
    )
    assert own == products


class WithoutPauses(StepSource):
    """What another source knows, on a host that takes no time, in whose pauses nothing can be exchanged."""

    def __init__(self, source) -> None:
        self.source = source

    def work(self, batch, degrees, strategies=()):
        found = self.source.work(batch, degrees, strategies)
        ops = tuple(replace(one, gap_s=0.0) for one in found.rank.ops)
        return replace(found, rank=replace(found.rank, ops=ops))

    def limits(self):
        return self.source.limits()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_sequence", [False, True])
def test_closed_form_is_the_replay_without_overlap(kind, is_sequence):
    source = WithoutPauses(source_of(Language(kind), tokens()))
    tensor = STRATEGIES["tensor"](sequence_parallel=is_sequence, overlap=False)
    for degrees, strategy in (({"tp": 2}, "ddp"), ({"tp": 4}, "ddp"), ({"tp": 2, "dp_shard": 2}, "fsdp")):
        plan = Plan(STRATEGIES[strategy](overlap=False), ParallelDegrees(**degrees), model_parallel=(tensor,))
        one = Combination("one", plan.strategy, (tensor,), tuple(degrees))
        ranks = plan.ranks
        plans = candidates((one,), ranks, 8, source.limits(), can_recompute=False)
        row = int(np.flatnonzero((plans.micro_batches == 1) & (plans.degree("tp") == degrees["tp"]))[0])
        links = topology_of(ranks, "t4", link="pcie4")
        closed = Judge(source).closed_form(plans, links).step_s[row]
        replayed = replay_plan(source, plan, global_batch=8, device="t4", link="pcie4").iteration_s
        assert replayed == pytest.approx(closed, rel=2e-3), degrees


def test_a_pipeline_sums_up_gradients_of_norms_on_the_stage_that_has_them():
    source = source_of(Language("gated", blocks=2), tokens())
    tensor = STRATEGIES["tensor"](sequence_parallel=True)
    pipeline = STRATEGIES["pipeline"](micro_batches=2)
    plan = Plan(degrees=ParallelDegrees(pp=2, tp=2), model_parallel=(pipeline, tensor))
    made = lower(source, plan, topology_of(4, "t4", link="pcie4"), 4, fold=False).graph
    own = [one for one in made.exchanges if one.name.endswith("norm_1.weight gradient")]
    assert len(own) == 2 * 3, "a stage each, three times each"
    assert replay_plan(source, plan, global_batch=4, device="t4", link="pcie4").iteration_s > 0


@pytest.mark.parametrize("shared_inputs", [False, True])
def test_async_exchanges_take_place_beside_their_products(shared_inputs):
    source = WithoutPauses(source_of(Language("gated"), tokens()))
    settings = {"sequence_parallel": True, "shared_inputs": shared_inputs}
    plain, beside = (STRATEGIES["tensor"](async_tp=one, **settings) for one in (False, True))
    works = [source.work(2, ParallelDegrees(tp=2), (one,)) for one in (plain, beside)]
    assert sorted(exchanged(works[0])) == sorted(exchanged(works[1])), "as many bytes"
    ops = works[1].rank.ops
    hidden = [one for one in works[1].exchanges if one.before[0] > one.after + 1 and one.kind != "all_reduce"]
    assert len(hidden) == (10 if shared_inputs else 16), "all but those of the embedding"
    assert all(any("linear" in ops[at].name for at in range(one.after + 1, one.before[0])) for one in hidden)
    times = [
        replay_plan(
            source, Plan(degrees=ParallelDegrees(tp=2), model_parallel=(one,)), 2, device="t4", link="pcie4"
        ).iteration_s
        for one in (plain, beside)
    ]
    assert times[1] < times[0]
    assert [ASYNC_IS_MODELLED in work.warnings for work in works] == [False, True]
    plan = Plan(degrees=ParallelDegrees(tp=2), model_parallel=(beside,))
    assert ASYNC_IS_MODELLED in replay_plan(source, plan, 2, device="t4", link="pcie4").warnings
    with pytest.raises(CdmppError, match="tensor.async_tp is true without sequence_parallel"):
        STRATEGIES["tensor"](async_tp=True)


class Grouped(nn.Module):
    """Attention of 8 heads of queries and 2 of keys and values, by one kernel, and a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(65, 32), nn.LayerNorm(32), nn.Linear(32, 65)
        self.q, self.k, self.v, self.o = nn.Linear(32, 32), nn.Linear(32, 8), nn.Linear(32, 8), nn.Linear(32, 32)

    def forward(self, x):
        x = self.words(x)
        y = self.norm(x)
        q, k, v = (by_heads(one(y), 4) for one in (self.q, self.k, self.v))
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.head(x + self.o(found.transpose(1, 2).flatten(2)))


def test_a_gathered_sequence_has_one_gradient_however_many_ranks_it_comes_from():
    source, names = source_of(Language("gated"), tokens()), list[list[str]]()
    for ranks in (2, 4):
        strategies = (STRATEGIES["tensor"](sequence_parallel=True),)
        ops = source.work(4, ParallelDegrees(tp=ranks), strategies).rank.ops
        names.append([name for op in ops if (name := re.sub(r"#\d+", "", op.name)).startswith("mul")])  # norms end so
    assert names[0] == names[1]
    assert max(map(names[0].count, names[0])) < 8


@pytest.mark.parametrize("experts", ["divided", "apart"])
def test_experts_of_a_network_without_any_are_refused(experts):
    one = STRATEGIES["tensor"](sequence_parallel=True, experts=experts)
    with pytest.raises(CdmppError, match=rf"tensor.experts is {experts}, and the network has no experts"):
        source_of(Language("gated"), tokens()).work(2, ParallelDegrees(tp=2), (one,))


def test_each_framework_has_its_rule_for_few_heads_of_keys_and_values():
    source = source_of(Grouped(), tokens())
    megatron = STRATEGIES["tensor"](framework="megatron")
    for name, one in (("torch", STRATEGIES["tensor"]()), ("megatron", megatron)):
        told = f"k gives 2 heads, and {name} divides them evenly among ranks: expected 1, 2 ranks; {FEW_HEADS}"
        with pytest.raises(CdmppError, match=told):
            source.work(2, ParallelDegrees(tp=4), (one,))
    assert source.limits()["tp"] == 2, "a search asks for no more"
    with pytest.raises(CdmppError, match="gives 4 heads, and torch divides them evenly") as refused:
        source_of(Language("fused"), tokens()).work(2, ParallelDegrees(tp=8), (STRATEGIES["tensor"](),))
    assert "keys and values" not in str(refused.value), "as many heads as of queries"
    with pytest.raises(CdmppError, match="tensor.framework is 'jax'"):
        STRATEGIES["tensor"](framework="jax")
    work = source.work(2, ParallelDegrees(tp=2), (megatron,))
    sizes = {one.name: one.bytes for one in work.rank.gradients}
    assert sizes["q.weight"] == 4 * 32 * 32 / 2 and sizes["k.weight"] == 4 * 32 * 4, "a head on each of two ranks"
    assert sizes["words.weight"] == 4 * 128 * 32, "65 words are padded to 128 on each rank"
    backward = [one for one in work.exchanges if work.rank.ops[one.before[0]].phase == "backward"]
    assert [one.bytes for one in backward] == [4 * 2 * 8 * 32] * 2, "one sum for three layers, and that of the head"
    assert not [one for one in work.exchanges if one.is_of_update]


def test_megatron_gathers_sequences_again_for_the_gradients_of_weights():
    """A rank keeps its part: three layers of one input gather that once more, while its gradient is made."""
    tensor = STRATEGIES["tensor"]
    found = {
        name: source_of(Grouped(), tokens()).work(
            2, ParallelDegrees(tp=2), (tensor(framework=name, sequence_parallel=True, shared_inputs=True),)
        )
        for name in ("torch", "megatron")
    }  # fmt: skip
    again = {
        name: [one for one in work.exchanges if one.name.endswith(", again")] for name, work in found.items()
    }  # fmt: skip
    assert again["torch"] == []
    wide = 4 * 2 * 8 * 32
    assert [(one.kind, one.bytes) for one in again["megatron"]] == [("all_gather", wide)] * 2, "attention and head"
    ops = found["megatron"].rank.ops
    assert all(ops[place].phase == "backward" for one in again["megatron"] for place in one.before)
    gathers = {name: sum(one.kind == "all_gather" for one in work.exchanges) for name, work in found.items()}
    assert gathers["megatron"] == gathers["torch"] + 2


@pytest.mark.parametrize("loss_parallel", [True, False])
def test_words_that_do_not_divide_evenly_are_padded_as_torch_does(loss_parallel):
    """``parallelize_module`` gathers 33 of 65 scores from each of two ranks: 4,224 bytes of 16 rows."""
    network = Language("gated")
    network.words, network.head = nn.Embedding(65, 32), nn.Linear(32, 65, bias=False)
    work = source_of(network, tokens()).work(
        2, ParallelDegrees(tp=2), (STRATEGIES["tensor"](loss_parallel=loss_parallel),)
    )
    assert {one.name: one.bytes for one in work.rank.gradients}["head.weight"] == 4 * 33 * 32
    gathered = [one.bytes for one in work.exchanges if one.kind == "all_gather"]
    assert gathered == ([] if loss_parallel else [4224])


def test_one_rank_is_a_step_on_one_device():
    source = source_of(Language("gated"), tokens())
    plan = Plan(model_parallel=(STRATEGIES["tensor"](),))
    replayed = replay_plan(source, plan, 4, device="t4", link="pcie4")
    rank = source.work(4, ParallelDegrees()).rank
    assert replayed.iteration_s == pytest.approx(
        rank.start_s + rank.tail_s + sum(op.duration_s + op.gap_s for op in rank.ops)
    )


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_of_norms_under_fsdp_wait_for_no_later_layer(kind, blocks):
    """Blocks whose gradients are collected stand in the backward pass before others that still exchange."""
    source = source_of(Language(kind, blocks=blocks), tokens())
    plan = Plan(
        FSDP(), ParallelDegrees(dp_shard=2, tp=2), model_parallel=(STRATEGIES["tensor"](sequence_parallel=True),)
    )
    replayed = replay_plan(source, plan, global_batch=8, device="t4", link="pcie4")
    own = [one for one in replayed.spans if one.rank == 0 and one.name.endswith("ln_1.weight gradient")]
    assert replayed.iteration_s > 0 and (kind != "fused" or len(own) == blocks)


def test_what_cannot_be_divided_evenly_is_refused_with_the_rule():
    source = source_of(Language("gated"), tokens())
    assert source.limits()["tp"] == 4
    for ranks in (3, 8):
        with pytest.raises(
            CdmppError, match=rf"tensor={ranks}: blocks.0.attention.wk gives 4 heads, .* expected 1, 2, 4 ranks"
        ):
            source.work(4, ParallelDegrees(tp=ranks))
    source = source_of(nn.Linear(8, 4), torch.randn(4, 8))
    assert source.limits()["tp"] == 1
    with pytest.raises(CdmppError, match="tensor=2: the network has no pair of linear layers"):
        source.work(4, ParallelDegrees(tp=2))


def test_a_search_says_which_layer_keeps_so_many_ranks_from_dividing():
    """The limit of a degree is a number; the reason has the layer, what it has, and the rule of the framework."""
    workload = Workload(Language("gated"), tokens())
    asked = {"device": "a100", "link": "nvlink3", "global_batch": 8, "progress": False}
    told = r"no plan for 8 devices: tensor=8: blocks.0.attention.wk gives 4 heads, .* expected 1, 2, 4 ranks"
    with pytest.raises(CdmppError, match=told):
        search_plans(workload, ranks=8, strategies=("tensor",), **asked)
    found = search_plans(workload, ranks=8, strategies=("tensor", "data"), **asked)
    assert any("blocks.0.attention.wk gives 4 heads" in why for why in found.rejected), found.rejected
