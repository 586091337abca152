"""Context parallelism: steps of attention, what ranks exchange in them, and what cannot be divided."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from plans.sources.toy_source import T4, ByBytes, source_of
from plans.strategies.transformers_small import Language, tokens
from torch import nn
from torch.nn import functional

from cdmpp import devices
from cdmpp.collectives import cluster
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted, on_cluster, topology_of
from cdmpp.devices import Device
from cdmpp.errors import CdmppError
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.eager.step import export_step
from cdmpp.network.workload import Workload
from cdmpp.operators.attention import attended_pairs
from cdmpp.operators.attention_rules import AttentionCall
from cdmpp.operators.ring_attention import Ring, RingCalls
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.distributed_step import replay_plan
from cdmpp.plans.lower import lower
from cdmpp.plans.memory import Memory
from cdmpp.plans.plan import Plan
from cdmpp.plans.question import Question
from cdmpp.plans.rank_memory import peak_of
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.plans.strategies.context import METHODS, Context
from cdmpp.steps.replay import replay

BATCH, HEADS, SIZE, TOKENS = 2, 4, 8, 16
"""Those of ``context_job.py``."""
JOB = Path(__file__).parent / "context_job.py"


class Attention(nn.Module):
    """Heads of their own queries, keys and values, with the arguments of ``scaled_dot_product_attention``."""

    def __init__(self, first: int = 0, mean: bool = False, **settings) -> None:
        super().__init__()
        self.first, self.mean, self.settings = first, mean, settings
        self.q, self.k, self.v, self.out = (nn.Linear(HEADS * SIZE, HEADS * SIZE) for _ in range(4))

    def forward(self, x):
        q, k, v = (one(x).view(*x.shape[:2], HEADS, SIZE).transpose(1, 2) for one in (self.q, self.k, self.v))
        k, v = (one[:, :, self.first :] for one in (k, v))
        x = self.out(functional.scaled_dot_product_attention(q, k, v, **self.settings).transpose(1, 2).flatten(2))
        return x.mean(1) if self.mean else x


def source(network: nn.Module, tokens: int = TOKENS, device: Device = T4, precision: str = "fp32") -> PredictedSource:
    example = torch.randn(BATCH, tokens, HEADS * SIZE)
    step = Workload(network, example, mode="training_step", loss="mse", precision=precision)
    return PredictedSource(step, device, EagerRuntime(ByBytes()))


@cache
def causal() -> PredictedSource:
    torch.manual_seed(0)
    return source(Attention(is_causal=True))


@cache
def free() -> PredictedSource:
    return source(Attention())


def operators(found: PredictedSource, ranks: int, strategy: Context, family: str):
    found.work(BATCH, ParallelDegrees(cp=ranks), (strategy,))
    made = found._steps[BATCH, ((strategy, ranks),) if ranks > 1 else ()].operators
    return [one for one in made if one.kind.family == family]


def pairs(one) -> int:
    return one["batch"] * one["heads"] * attended_pairs(one["rows"], one["cols"], bool(one["causal"]))


@pytest.fixture(scope="module")
def pytorch(forked_jobs):
    """What PyTorch's own templates do on gloo, by the number of ranks."""
    return cache(lambda ranks: json.loads(forked_jobs.run(JOB, str(ranks))))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("is_balanced", "is_causal"), [(True, True), (False, True), (False, False)])
def test_ranks_exchange_what_those_of_pytorch_do(method, ranks, is_balanced, is_causal, pytorch):
    """The last rank looks at as many pairs as PyTorch's, and all ranks together at those of the whole sequence."""
    real, strategy = pytorch(ranks)[f"{method} {is_balanced} {is_causal}"], Context(method, is_balanced)
    found = causal() if is_causal else free()
    work = found.work(BATCH, ParallelDegrees(cp=ranks), (strategy,))
    assert [[work.rank.ops[one.before[0]].phase, one.kind, one.bytes] for one in work.exchanges] == real["sent"]
    assert all(one.after < min(one.before) and one.is_ring == (one.kind == "send_recv") for one in work.exchanges)
    assert pytorch(ranks)["refusal"] == "NotImplementedError", "PyTorch divides attention of CPUs now: so can we"

    called = operators(found, ranks, strategy, "attention")
    for phase, ours in (("forward", called[:ranks]), ("backward", called[ranks:])):
        assert len(ours) == ranks and all(one.name.endswith("_backward") == (phase == "backward") for one in ours)
        every = [one[phase] for one in real["pairs"]]
        assert sum(map(pairs, ours)) == BATCH * HEADS * every[-1] == BATCH * HEADS * max(every)
        assert sum(every) == attended_pairs(TOKENS, TOKENS, is_causal)
        if is_balanced:
            assert len({*every}) == 1, "all have as much to do"


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("is_half", [False, True])
@pytest.mark.parametrize(("is_balanced", "is_causal"), [(True, True), (False, True), (False, False)])
def test_a_rank_holds_what_those_of_pytorch_do(method, ranks, is_balanced, is_causal, is_half, pytorch):
    """Storages of PyTorch's own ring on gloo, after each operator, of the rank with the last part of the sequence."""
    q, k, v = (
        torch.empty(BATCH, HEADS, TOKENS // ranks, SIZE, dtype=torch.bfloat16 if is_half else torch.float32)
        for _ in range(3)
    )  # fmt: skip
    ring = RingCalls(AttentionCall(q, k, v, None, 0.0, is_causal), Ring(ranks, method == "all_gather", is_balanced))
    each, sums = q.nbytes, 4 * BATCH * HEADS * TOKENS // ranks
    real = pytorch(ranks)[f"{method} {is_balanced} {is_causal}{' half' if is_half else ''}"]["held"][-1]
    # messages that were awaited stay until gloo lets go of them, and balanced halves are added in copies
    forward, backward = 3 * each + ring.held_bytes, 5 * each + sums + ring.backward_held_bytes
    assert forward <= real["forward"] <= 1.25 * forward
    assert backward <= real["backward"] <= 1.25 * backward


@pytest.mark.parametrize("method", METHODS)
def test_keys_and_values_of_others_count_in_the_memory_of_a_plan(method):
    """The peak of one attention is that of its second step in the backward pass, or of the merge in the forward one."""
    strategy, ranks = Context(method), 4
    work = causal().work(BATCH, ParallelDegrees(cp=ranks), (strategy,))
    live = Memory(work.memory, work.rank).live()
    tokens = 4 * BATCH * TOKENS // ranks * HEADS * SIZE
    keys = (ranks + 1) * 2 * tokens if method == "all_gather" else 3 * 2 * tokens
    # queries, keys and values, the result, its gradient; gradients of queries; of keys and values, three copies; before
    # and now those of the kernel
    least = 5 * tokens + tokens + 3 * 2 * tokens + keys + 3 * tokens + 2 * tokens
    assert least <= live.passes <= 1.35 * least
    assert sum(one.workspace_bytes for one in work.rank.ops) > keys


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_all_ranks_have_the_operations_of_the_whole_sequence(ranks):
    strategy = Context()
    for family in ("attention", "linear"):
        own, whole = (sum(o.flops for o in operators(causal(), n, strategy, family)) for n in (ranks, 1))
        assert ranks * own == whole, family
    alone = sum(one.flops for one in operators(causal(), ranks, Context(load_balance=False), "attention"))
    assert alone == pytest.approx((2 * ranks - 1) / ranks * whole_flops() / ranks, rel=0.1), "the last one has most"


class Shared(Attention):
    """Two heads share keys and values; ``repeats``: these are repeated before attention, as torchtitan's Llama does."""

    def __init__(self, repeats: bool) -> None:
        super().__init__()
        self.repeats = repeats
        self.k, self.v = (nn.Linear(HEADS * SIZE, HEADS // 2 * SIZE) for _ in range(2))

    def forward(self, x):
        q, k, v = (one(x).view(*x.shape[:2], -1, SIZE).transpose(1, 2) for one in (self.q, self.k, self.v))
        if self.repeats:
            k, v = (one.repeat_interleave(2, 1) for one in (k, v))
        given = {} if self.repeats else {"enable_gqa": True}
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True, **given)
        return self.out(found.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("method", METHODS)
def test_heads_that_a_model_repeats_are_exchanged_by_all_ranks(method):
    """``repeat_heads`` is the plan of a network that repeats them: the same messages, the same kernels of attention."""
    split = ParallelDegrees(cp=4)
    shared, repeated = (source(Shared(one), device=devices.get("a100"), precision="bf16") for one in (False, True))
    few, many = Context(method), Context(method, repeat_heads=True)
    sent = {
        name: [(one.kind, one.bytes) for one in found.work(BATCH, split, (strategy,)).exchanges]
        for name, found, strategy in (
            ("few", shared, few), ("many", shared, many), ("repeated", repeated, few), ("none", repeated, many),
        )
    }  # fmt: skip
    assert sent["many"] == sent["repeated"] == sent["none"] == [(kind, 2 * size) for kind, size in sent["few"]]
    assert operators(shared, 4, many, "attention") == operators(repeated, 4, few, "attention")
    with pytest.raises(CdmppError, match="repeat_heads is what a model does"):
        many.torch_lines()


def whole_flops() -> float:
    return sum(one.flops for one in operators(causal(), 1, Context(), "attention"))


def test_a_sequence_may_be_as_long_as_another_axis():
    """32 tokens of 32 numbers each, which are seen as rows in between."""

    class Rows(Attention):
        def forward(self, x):
            x = self.out(x.reshape(-1, 32))
            return super().forward(functional.relu(x.reshape(-1).view(-1, 16, 2).flatten(1).view(-1, 32, 32)))

    found = source(Rows(is_causal=True), tokens=HEADS * SIZE)
    for family in ("attention", "linear"):
        own, whole = (sum(o.flops for o in operators(found, n, Context(), family)) for n in (4, 1))
        assert 4 * own == whole, family


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_bytes_are_those_of_the_keys_and_values_of_a_rank(ranks):
    both = 2 * 4 * BATCH * TOKENS // ranks * HEADS * SIZE
    for method, passed in (("ring", [both] * (ranks - 1)), ("all_gather", [both * ranks])):
        work = causal().work(BATCH, ParallelDegrees(cp=ranks), (Context(method=method),))
        sent = {phase: [] for phase in ("forward", "backward")}
        for one in work.exchanges:
            sent[work.rank.ops[one.before[0]].phase].append((one.name.removeprefix("L['self']."), one.bytes))
        keys, back = "keys and values", "gradients of keys and values"
        assert [size for _, size in sent["forward"]] == passed
        assert [size for name, size in sent["backward"] if name.endswith(back)] == [both] * ranks
        assert [size for name, size in sent["backward"] if name.endswith(keys) and not name.endswith(back)] == passed


def test_parameters_are_whole_and_positions_are_those_of_a_rank():
    found = source_of(Language("fused"), tokens())
    one, whole = found.work(4, ParallelDegrees(cp=2)), found.work(4, ParallelDegrees())
    assert [(g.name, g.bytes, g.apart) for g in one.rank.gradients] == [
        (g.name, g.bytes, ()) for g in whole.rank.gradients
    ]
    assert one.memory.parameter_bytes == whole.memory.parameter_bytes
    assert one.memory.input_bytes == whole.memory.input_bytes / 2
    assert 0.45 < one.memory.saved_activation_bytes / whole.memory.saved_activation_bytes < 0.55
    divided = Context().divide(export_step(Workload(Language("fused"), tokens(), mode="training_step")).exported, 4)
    (positions,) = (node for node in divided.graph.nodes if node.name.startswith("arange"))
    assert tuple(positions.meta["val"].shape) == (2,)


def test_gradients_are_averaged_along_the_sequence_too():
    strategies = (Context(),)
    plan = Plan(degrees=ParallelDegrees(dp_replicate=2, cp=2), model_parallel=strategies)
    assert plan.replicating == ("dp_replicate", "cp")
    made = lower(causal(), plan, topology_of(4, "t4", link="pcie4"), 4, fold=False).graph
    assert {one.participants for one in made.exchanges if one.kind == "all_reduce"} == {(0, 1, 2, 3)}
    assert {one.participants for one in made.exchanges if one.kind == "all_gather"} == {(0, 1), (2, 3)}
    halos = {one.participants for one in made.exchanges if one.kind == "send_recv"}
    assert halos == {(0, 1), (1, 0), (2, 3), (3, 2)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("degrees", [{"cp": 4}, {"dp_replicate": 2, "cp": 2}])
def test_one_rank_stands_for_all_of_a_ring(method, degrees):
    """On equal links the step is the same; between nodes all messages are as slow as the slowest of their ring."""
    plan = Plan(degrees=ParallelDegrees(**degrees), model_parallel=(Context(method),))
    steps = {}
    for nodes in (1, 4):
        links = on_cluster(replace(cluster.get("dgx-h100"), nodes=nodes, devices_per_node=4 // nodes), 4)
        graphs = [lower(causal(), plan, links, 8, fold=fold).graph for fold in (True, False)]
        assert [len(one.ranks) for one in graphs] == [1, 4]
        steps[nodes] = [replay(one, links).step_s for one in graphs]
        assert steps[nodes][0] == pytest.approx(steps[nodes][1], rel=1e-6)
    assert steps[4][0] > steps[1][0]
    mixed = on_cluster(replace(cluster.get("dgx-h100"), nodes=2, devices_per_node=2), 4)
    if degrees["cp"] == 4:
        folded, whole = (
            replay(lower(causal(), plan, mixed, 8, fold=fold).graph, mixed).step_s for fold in (True, False)
        )
        assert whole <= folded * (1 + 1e-9) and folded <= 1.2 * whole


def test_one_rank_is_the_network_itself():
    place = {"global_batch": 8, "device": "t4", "link": "pcie4"}
    plans = [Plan(degrees=ParallelDegrees(dp_replicate=2), model_parallel=own) for own in ((), (Context(),))]
    assert len({replay_plan(causal(), plan, **place).iteration_s for plan in plans}) == 1


MASK = torch.zeros(TOKENS, TOKENS)
REFUSED = [
    (
        lambda: Attention(is_causal=True),
        3,
        None,
        "context=3: a sequence of 16 tokens does not divide into 6 equal parts",
    ),
    (lambda: Attention(is_causal=True), 16, None, "16 tokens does not divide into 32 equal parts, two for each rank"),
    (lambda: Attention(), 3, None, "a sequence of 16 tokens does not divide into 3 equal parts$"),
    (lambda: Attention(), 2, True, "has no causal mask, and PyTorch balances the load of causal ones alone"),
    (
        lambda: Attention(attn_mask=MASK),
        2,
        None,
        "has a mask that is a tensor, which context_parallel of PyTorch refuses",
    ),
    (lambda: Attention(first=4), 2, None, "the network has no attention over one sequence"),
    (
        lambda: Attention(mean=True),
        2,
        None,
        r"mean \(mean, .*\) reads all tokens of a sequence for each of its results",
    ),
]


@pytest.mark.parametrize(("network", "ranks", "balance", "message"), REFUSED)
def test_what_cannot_be_divided_is_refused_with_the_rule(network, ranks, balance, message):
    with pytest.raises(CdmppError, match=message):
        source(network()).work(BATCH, ParallelDegrees(cp=ranks), (Context(load_balance=balance),))


def test_attention_without_a_kernel_is_refused():
    with pytest.raises(CdmppError, match="the network has no attention over one sequence by scaled_dot_product"):
        source_of(Language("gated"), tokens()).work(2, ParallelDegrees(cp=2))
    grouped = Attention(is_causal=True, dropout_p=0.0)
    step = Workload(grouped, torch.randn(BATCH, TOKENS, 32), mode="training_step", loss="mse", attention="math")
    with pytest.raises(
        CdmppError, match="products of whole sequences .math., and context parallelism of PyTorch divides"
    ):
        PredictedSource(step, T4, EagerRuntime(ByBytes())).work(BATCH, ParallelDegrees(cp=2))
    with pytest.raises(CdmppError, match="context.method is 'flex'"):
        Context(method="flex")


WORDS = ("data+cp", "fsdp+cp", "cp+pp", "cp+tp", "fsdp+cp+tp")


def test_the_closed_form_is_that_of_the_replay():
    def links(ranks):
        return fitted(AlphaBeta(1e-5, 1e-10), ranks, "nccl")

    found = source_of(Language("fused", blocks=2), tokens())
    judged, seen = (question := Question(found, links, 8, 16, WORDS)).judged(), set()
    for row in np.flatnonzero(judged.fits).tolist():
        plan = question.plan(judged.plans, row)
        key = judged.plans.combinations[judged.plans.combination[row]].name, plan.degrees, bool(plan.recompute)
        if key in seen or plan.gradient_accumulation_steps > 1:
            continue
        seen.add(key)
        replayed = replay(lower(found, plan, links(8), 16).graph, links(8)).step_s
        off = 0.15 if plan.degrees.pp > 1 else 0.1 if plan.degrees.tp > 1 else 0.05
        assert judged.costs.step_s[row] == pytest.approx(replayed, rel=off), key
        work = found.work(int(judged.plans.micro_batch[row]), plan.degrees, plan.model_parallel)
        peak = peak_of(work, plan, lower(found, plan, links(8), 16), False)
        assert judged.costs.memory_bytes[row] == pytest.approx(peak, abs=2), key
    assert {name for name, *_ in seen} == {*WORDS}


def test_a_ring_in_a_job_of_tensor_parallel_ranks_sends_fewer_heads():
    found = source_of(Language("fused"), tokens())
    alone, both = (found.work(4, ParallelDegrees(cp=2, tp=tp)) for tp in (1, 2))
    sent = [[one.bytes for one in work.exchanges if one.degree == "cp"] for work in (alone, both)]
    assert sent[0] == [2 * one for one in sent[1]] and len(sent[0]) == 4
    strategies = tuple(STRATEGIES[name]() for name in ("context", "tensor"))
    plan = Plan(degrees=ParallelDegrees(dp_replicate=2, cp=2, tp=2), model_parallel=strategies)
    assert replay_plan(found, plan, global_batch=8, device="t4", link="pcie4").iteration_s > 0
