"""Experts under tensor parallelism: whole on each rank, divided by columns and rows, or apart on ranks of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plans.sources.toy_source import T4, ByBytes
from plans.strategies.test_expert import BATCH, CHOSEN, EXPERTS, INNER, LAYERS, ROWS, TOKENS, WIDTH, source

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted
from cdmpp.errors import CdmppError, UsageError
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.workload import Workload
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import lower
from cdmpp.plans.plan import Plan
from cdmpp.plans.plan_file import plan_from_dict
from cdmpp.plans.script.tensor_code import tensor_code
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.strategies.expert import Expert
from cdmpp.plans.strategies.tensor import Tensor
from cdmpp.programs.models import import_transformers
from cdmpp.steps.replay import replay

SIZE = 4 * ROWS * WIDTH
"""Bytes of all rows that go to the experts of a layer."""


@pytest.fixture(scope="module")
def even():
    return source("qwen3", kv_heads=4)


def tensor(experts: str, sequence: bool = True, framework: str = "megatron") -> Tensor:
    return Tensor(framework=framework, sequence_parallel=sequence, experts=experts)


def exchanged(work, layer: int = 0) -> list[tuple[str, str, int, str]]:
    """Exchanges next to the experts of a layer: kind, degree, bytes, and the phase that waits."""
    name = f"model.layers.{layer}.mlp.experts"
    return [
        (one.kind, one.degree, one.bytes, work.rank.ops[one.before[0]].phase)
        for one in work.exchanges
        if one.name.startswith(name) and one.bytes > 8 * EXPERTS
    ]


def experts_of(work) -> int:
    return sum(one.bytes for one in work.rank.gradients if ".experts." in one.name)


def products(found: PredictedSource, degrees: ParallelDegrees, one: Tensor) -> float:
    """Operations of the products of experts on a rank, in both passes."""
    found.work(BATCH, degrees, (one, Expert()))
    (split,) = [key for key in found._steps if key[0] == BATCH and _is(key[1], degrees, one)]
    parts = degrees.tp if one.experts == "divided" else 1
    sizes = {INNER // parts, 2 * INNER // parts}
    made = found._steps[split].operators
    return sum(op.flops for op in made if op.name == "bmm" and sizes & {op["rows"], op["inner"], op["cols"]})


def _is(split, degrees: ParallelDegrees, one: Tensor) -> bool:
    return split == (((Expert(), degrees.ep),) if degrees.ep > 1 else ()) + ((one, degrees.tp),)


def test_divided_experts_gather_rows_and_sum_up_what_they_give(even):
    """As Megatron with expert tensor parallelism: each rank has columns of the first, rows of the second matrix."""
    for tp in (2, 4):
        work = even.work(BATCH, ParallelDegrees(tp=tp), (tensor("divided"),))
        assert exchanged(work) == [
            ("all_gather", "tp", SIZE, "forward"), ("reduce_scatter", "tp", SIZE, "forward"),
            ("all_gather", "tp", SIZE, "backward"), ("reduce_scatter", "tp", SIZE, "backward"),
        ]  # fmt: skip
        assert experts_of(work) == experts_of(even.work(BATCH, ParallelDegrees())) / tp
    work = even.work(BATCH, ParallelDegrees(tp=2), (tensor("divided", sequence=False),))
    assert exchanged(work) == [("all_reduce", "tp", SIZE, "forward"), ("all_reduce", "tp", SIZE, "backward")]


def test_experts_apart_get_the_tokens_that_a_rank_has_of_its_own(even):
    for tp in (2, 4):
        work = even.work(BATCH, ParallelDegrees(tp=tp), (tensor("apart"),))
        assert exchanged(work) == [
            ("all_to_all", "tp", SIZE // tp, phase) for phase in ("forward",) * 2 + ("backward",) * 2
        ]
        assert experts_of(work) == experts_of(even.work(BATCH, ParallelDegrees())) / tp
        counts = [one for one in work.exchanges if one.name.endswith("token counts")]
        assert [one.bytes for one in counts] == [8 * EXPERTS] * LAYERS


@pytest.mark.parametrize(("ep", "tp"), [(1, 2), (2, 2), (2, 4), (4, 2)])
def test_ranks_do_as_much_together_as_one(even, ep, tp):
    """Ranks along ep have batches of their own: each has as many rows as it sends."""
    whole = 3 * LAYERS * 2 * ROWS * WIDTH * 3 * INNER
    degrees = ParallelDegrees(ep=ep, tp=tp)
    assert products(even, degrees, tensor("whole")) == whole
    assert products(even, degrees, tensor("divided")) == whole / tp
    assert products(even, degrees, tensor("apart")) == whole / tp


def test_both_degrees_divide_experts_one_after_the_other(even):
    """Tokens go along ep first, and come back from tp first; a rank sends those of its part of the sequence."""
    work = even.work(BATCH, ParallelDegrees(ep=2, tp=2), (tensor("apart"), Expert()))
    assert [one[1] for one in exchanged(work)] == ["ep", "tp", "tp", "ep", "ep", "tp", "tp", "ep"]
    assert {one[2] for one in exchanged(work)} == {SIZE // 2}
    assert experts_of(work) == experts_of(even.work(BATCH, ParallelDegrees())) / 4
    divided = even.work(BATCH, ParallelDegrees(ep=2, tp=2), (tensor("divided"), Expert()))
    assert [one[:3] for one in exchanged(divided)][:4] == [
        ("all_to_all", "ep", SIZE // 2), ("all_gather", "tp", SIZE), ("reduce_scatter", "tp", SIZE),
        ("all_to_all", "ep", SIZE // 2),
    ]  # fmt: skip


def test_router_weights_have_partial_gradients(even):
    """Each rank scores its own tokens with the whole router, whose gradient is a part of a sum."""
    whole = even.work(BATCH, ParallelDegrees())
    work = even.work(BATCH, ParallelDegrees(tp=2), (tensor("apart"),))
    sizes, own = ({one.name: one.bytes for one in each.rank.gradients} for each in (whole, work))
    routers = [name for name in sizes if ".gate." in name]
    assert len(routers) == LAYERS and all(own[name] == sizes[name] for name in routers)
    (once,) = [one for one in work.exchanges if one.is_of_update]
    norms = sum(size for name, size in sizes.items() if "norm" in name)
    assert once.bytes == norms + sum(sizes[name] for name in routers)


def test_latent_attention_and_shared_experts_go_with_it():
    """DeepSeek's blocks: groups of experts are chosen by scores with a bias, next to an expert of all tokens."""
    library = pytest.importorskip("transformers") and import_transformers()
    config = library.DeepseekV3Config(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
        n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=16, intermediate_size=32,
        first_k_dense_replace=0, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8,
        n_group=2, topk_group=1, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    made = library.DeepseekV3ForCausalLM(config)
    made.set_experts_implementation("grouped_mm")
    ids = torch.randint(0, 64, (2, TOKENS))
    step = Workload(made, {"input_ids": ids, "labels": ids}, mode="training_step", loss="model")
    found = PredictedSource(step, T4, EagerRuntime(ByBytes()))
    rows = 4 * BATCH * TOKENS * CHOSEN * 32
    for experts, kinds in (("apart", {"all_to_all"}), ("divided", {"all_gather", "reduce_scatter"})):
        work = found.work(BATCH, ParallelDegrees(tp=2), (tensor(experts),))
        assert {one[0] for one in exchanged(work)} == kinds
        assert {one[2] for one in exchanged(work)} == {rows // 2 if experts == "apart" else rows}
        assert experts_of(work) * 2 == experts_of(found.work(BATCH, ParallelDegrees()))


@pytest.mark.parametrize("experts", ["divided", "apart"])
def test_the_replay_counts_them(even, experts):
    strategies = (tensor(experts), Expert())
    plan = Plan(degrees=ParallelDegrees(dp_replicate=2, ep=2, tp=2), model_parallel=strategies)
    assert plan_from_dict(plan.to_dict()) == plan
    links = fitted(AlphaBeta(1e-5, 1e-10), 8, "nccl")
    lowered = lower(even, plan, links, 8)
    sent = [one for one in lowered.graph.exchanges if ".experts" in one.name and one.kind == "all_to_all"]
    assert sent and replay(lowered.graph, links).step_s > 0
    assert np.isfinite(max(one.bytes for one in sent))


def test_what_cannot_be_divided_is_refused_with_the_rule():
    with pytest.raises(CdmppError, match="tensor.experts is apart without sequence_parallel"):
        tensor("apart", sequence=False)
    with pytest.raises((CdmppError, UsageError), match="tensor.experts is 'most'"):
        tensor("most")
    with pytest.raises(CdmppError, match="experts divided: parallelize_module has no style"):
        tensor_code(Workload("hf:gpt2"), tensor("divided"), "mesh")
    found = source("qwen3", layers=1)
    with pytest.raises(CdmppError, match=r"tensor=16: .*expected"):
        found.work(BATCH, ParallelDegrees(tp=16), (tensor("apart"),))
    with pytest.raises(CdmppError, match=r"tensor=2: model.layers.0.mlp.experts has a busiest expert"):
        source("qwen3", imbalance=2.0, layers=1).work(BATCH, ParallelDegrees(tp=2), (tensor("apart"),))
