"""Expert parallelism: what ranks exchange, hold and average where experts are divided over them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from plans.sources.toy_source import T4, ByBytes, source_of
from plans.strategies.transformers_small import Language, tokens

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted, topology_of
from cdmpp.errors import CdmppError
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.workload import Workload
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.distributed_step import replay_plan
from cdmpp.plans.lower import lower
from cdmpp.plans.plan import Plan
from cdmpp.plans.question import Question
from cdmpp.plans.rank_memory import peak_of
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.plans.strategies.expert import Expert
from cdmpp.programs.experts import expert_rows
from cdmpp.programs.models import import_transformers
from cdmpp.steps.replay import replay

EXPERTS, CHOSEN, WIDTH, INNER, TOKENS, LAYERS, BATCH = 8, 2, 16, 24, 16, 2, 2
ROWS = BATCH * TOKENS * CHOSEN
"""Rows that a rank sends to the experts of a layer."""
JOB = Path(__file__).parent / "expert_job.py"


def model(kind: str = "mixtral", implementation: str = "grouped_mm", layers: int = LAYERS, kv_heads: int = 2):
    torch.manual_seed(0)
    library = import_transformers()
    sizes = {
        "vocab_size": 64, "hidden_size": WIDTH, "num_hidden_layers": layers, "num_attention_heads": 4,
        "num_key_value_heads": kv_heads, "use_cache": False, "num_experts_per_tok": CHOSEN,
    }  # fmt: skip
    if kind == "mixtral":
        config = library.MixtralConfig(num_local_experts=EXPERTS, intermediate_size=INNER, **sizes)
        found = library.MixtralForCausalLM(config)
    else:
        config = library.Qwen3MoeConfig(num_experts=EXPERTS, moe_intermediate_size=INNER, head_dim=4, **sizes)
        found = library.Qwen3MoeForCausalLM(config)
    found.set_experts_implementation(implementation)
    return found


def source(kind: str = "mixtral", imbalance: float = 1.0, **settings) -> PredictedSource:
    pytest.importorskip("transformers")
    ids = torch.randint(0, 64, (2, TOKENS))
    example = {"input_ids": ids, "labels": ids}
    step = Workload(model(kind, **settings), example, mode="training_step", loss="model", moe_imbalance=imbalance)
    return PredictedSource(step, T4, EagerRuntime(ByBytes()))


@pytest.fixture(scope="module", params=["mixtral", "qwen3"])
def even(request):
    return source(request.param)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_tokens_go_to_their_experts_and_back_in_both_passes(even, ranks):
    work = even.work(BATCH, ParallelDegrees(ep=ranks))
    ops, size = work.rank.ops, 4 * ROWS * WIDTH
    layers = [f"model.layers.{number}.mlp.experts" for number in range(LAYERS)]
    assert [(one.kind, one.degree, one.name, one.bytes) for one in work.exchanges] == [
        ("all_to_all", "ep", f"{layer} {what}", n_bytes)
        for way, parts in (
            (1, (("token counts", 8 * EXPERTS), ("dispatch", size), ("combine", size))),
            (-1, (("gradient of combine", size), ("gradient of dispatch", size))),
        )
        for layer in layers[::way]
        for what, n_bytes in parts
    ]
    phases = ["forward"] * 3 * LAYERS + ["backward"] * 2 * LAYERS
    assert [ops[one.before[0]].phase for one in work.exchanges] == phases
    assert all(one.after < min(one.before) for one in work.exchanges)


def products(found: PredictedSource, ranks: int) -> float:
    """Operations of the grouped products of a rank, forward and backward."""
    found.work(BATCH, ParallelDegrees(ep=ranks))
    return sum(one.flops for one in of_experts(found, ranks))


def of_experts(found: PredictedSource, ranks: int):
    """Products of a rank that are no attention, which has none of these sizes."""
    made = found._steps[BATCH, ((Expert(), ranks),) if ranks > 1 else ()].operators
    return [one for one in made if one.name == "bmm" and {INNER, 2 * INNER} & {one["rows"], one["inner"], one["cols"]}]


def test_a_rank_has_its_part_of_the_experts_and_as_much_work(even):
    whole = even.work(BATCH, ParallelDegrees())
    sizes = {one.name: one.bytes for one in whole.rank.gradients}
    for ranks in (2, 4, 8):
        work = even.work(BATCH, ParallelDegrees(ep=ranks))
        for one in work.rank.gradients:
            is_expert = ".experts." in one.name
            assert one.bytes == sizes[one.name] / (ranks if is_expert else 1)
            assert one.apart == (("ep",) if is_expert else ())
        held = sum(one.bytes for one in work.rank.gradients)
        assert work.memory.parameter_bytes == work.memory.gradient_bytes == held
        assert products(even, ranks) == products(even, 1) == 3 * LAYERS * 2 * ROWS * WIDTH * 3 * INNER


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("imbalance", [1.5, 3.0])
def test_the_rank_with_the_busiest_expert_counts(ranks, imbalance):
    found = source(imbalance=imbalance, layers=1)
    shares = expert_rows(ROWS, EXPERTS, imbalance)
    arrive = ranks * sum(shares[: EXPERTS // ranks])
    sent = [one.bytes for one in found.work(BATCH, ParallelDegrees(ep=ranks)).exchanges]
    assert sent == [8 * EXPERTS, *[4 * arrive * WIDTH] * 4] and arrive > ROWS
    work = 3 * 2 * arrive * WIDTH * 3 * INNER
    assert work <= products(found, ranks) <= 1.1 * work, "rows of the others are rounded up to as many for each"
    assert ranks * shares[0] in {one["rows"] for one in of_experts(found, ranks)}


def test_what_cannot_be_divided_is_refused_with_the_rule():
    pytest.importorskip("transformers")
    with pytest.raises(CdmppError, match="expert=3: .*experts has 8 experts: expected a number of ranks that divides"):
        source(layers=1).work(BATCH, ParallelDegrees(ep=3))
    with pytest.raises(CdmppError, match="expert=2: the network has no experts that run together as grouped products"):
        source(implementation="eager", layers=1).work(BATCH, ParallelDegrees(ep=2))
    dense = source_of(Language("fused"), tokens())
    assert dense.limits()["ep"] == 1
    with pytest.raises(CdmppError, match="expert=2: the network has no experts"):
        dense.work(BATCH, ParallelDegrees(ep=2))


def test_one_rank_is_the_network_itself(even):
    place = {"global_batch": 8, "device": "t4", "link": "pcie4"}
    plans = [Plan(degrees=ParallelDegrees(dp_replicate=2), model_parallel=own) for own in ((), (Expert(),))]
    assert len({replay_plan(even, plan, **place).iteration_s for plan in plans}) == 1


def test_experts_are_averaged_over_their_replicas_only(even):
    """8 ranks, of which each 4 have the same experts: what they share is averaged over all, experts over 4."""
    plan = Plan(degrees=ParallelDegrees(dp_replicate=4, ep=2), model_parallel=(Expert(),))
    assert plan.replicating == ("dp_replicate", "ep")
    made = lower(even, plan, topology_of(8, "t4", link="pcie4"), 16, fold=False).graph
    found = [one for one in made.exchanges if one.kind == "all_reduce"]
    by_group = {}
    for one in found:
        by_group[one.participants] = by_group.get(one.participants, 0) + one.bytes
    gradients = made.ranks[0].gradients
    experts = sum(one.bytes for one in gradients if ".experts." in one.name)
    shared = sum(one.bytes for one in gradients) - experts
    assert by_group == {tuple(range(8)): shared, (0, 2, 4, 6): experts, (1, 3, 5, 7): experts}
    with pytest.raises(CdmppError, match="a global batch of 4 does not divide into 8 equal parts: 8 replicas"):
        lower(even, plan, topology_of(8, "t4", link="pcie4"), 4)


WORDS = ("ep", "data+ep", "fsdp+ep", "hsdp+ep", "zero1+ep", "pp+ep", "fsdp+pp+ep")


def test_the_closed_form_is_that_of_the_replay(even):
    def links(ranks):
        return fitted(AlphaBeta(1e-5, 1e-10), ranks, "nccl")

    question = Question(even, links, 8, 16, WORDS)
    judged = question.judged()
    seen = set()
    for row in np.flatnonzero(judged.fits).tolist():
        plan = question.plan(judged.plans, row)
        schedule = next((one.schedule for one in plan.model_parallel if one.name == "pipeline"), "1f1b")
        key = judged.plans.combinations[judged.plans.combination[row]].name, plan.degrees, bool(plan.recompute)
        if schedule != "1f1b" or key in seen:
            continue
        seen.add(key)
        lowered = lower(even, plan, links(8), 16)
        assert judged.costs.step_s[row] == pytest.approx(replay(lowered.graph, links(8)).step_s, rel=0.03), key
        work = even.work(int(judged.plans.micro_batch[row]), plan.degrees, plan.model_parallel)
        assert judged.costs.memory_bytes[row] == pytest.approx(peak_of(work, plan, lowered, False), abs=2), key
    assert {name for name, *_ in seen} == {*WORDS}


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_real_layer_of_experts_exchanges_as_much_in_this_order(ranks, forked_jobs):
    """The script writes a layer as torchtitan does, with as many tokens for each expert: 5 all-to-alls."""
    work = source(layers=1).work(BATCH, ParallelDegrees(ep=ranks))
    found = [[work.rank.ops[one.before[0]].phase, one.kind, one.bytes] for one in work.exchanges]
    assert json.loads(forked_jobs.run(JOB, str(ranks), str(EXPERTS))) == found and len(found) == 5


def test_tensor_and_expert_parallelism_share_a_job(even):
    """Heads are divided along tp; tokens and experts are those of ep."""
    both = even.work(BATCH, ParallelDegrees(ep=2, tp=2))
    alone = even.work(BATCH, ParallelDegrees(ep=2)), even.work(BATCH, ParallelDegrees(tp=2))
    sent = [{(one.kind, one.bytes, one.name) for one in work.exchanges if one.degree == degree}
            for work, degree in zip((both, both, *alone), ("ep", "tp", "ep", "tp"), strict=True)]  # fmt: skip
    assert sent[0] == sent[2] and sent[1] == sent[3] and all(sent)
    strategies = tuple(STRATEGIES[name]() for name in ("tensor", "expert"))
    plan = Plan(degrees=ParallelDegrees(dp_replicate=2, ep=2, tp=2), model_parallel=strategies)
    assert replay_plan(even, plan, global_batch=8, device="t4", link="pcie4").iteration_s > 0
