"""Scripts really run here over gloo, and exchange what the plan says; configurations have torchtitan's own names."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gloo_jobs.predicted import rank_rows
from cdmpp import Workload, devices
from cdmpp.collectives import cluster
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted
from cdmpp.errors import CdmppError
from cdmpp.network.update import Update
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import lower_work
from cdmpp.plans.placement import micro_batch_of
from cdmpp.plans.plan import Plan
from cdmpp.plans.script.torch_script import TorchScript
from cdmpp.plans.script.torchtitan_config import TorchtitanConfig
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.strategies.context import Context
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.expert import Expert
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.hsdp import HSDP
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.strategies.tensor import Tensor
from cdmpp.plans.strategies.zero import ZeRO
from cdmpp.synchrony.policies.asynchronous import Asynchronous

FOLDER = Path(__file__).parent
NETWORK = f"{FOLDER / 'small_lm.py'}:make"
STEPS = 3
"""DDP has its buckets for good in the third step."""


def piped(schedule: str, **settings) -> tuple[Pipeline, ...]:
    return (Pipeline(schedule, 4, **settings),)


PLANS = {
    "ddp, 2 batches": (Plan(DDP(), ParallelDegrees(dp_replicate=2), 2), 8),
    "fsdp, recomputed": (Plan(FSDP(), ParallelDegrees(dp_shard=2), recompute=("blocks.0", "blocks.2")), 4),
    "hsdp": (Plan(HSDP(), ParallelDegrees(dp_replicate=2, dp_shard=2), update="fused"), 8),
    "fsdp, two ahead": (Plan(FSDP(prefetch=2), ParallelDegrees(dp_shard=2)), 4),
    "fsdp, all on the host": (
        Plan(FSDP(), ParallelDegrees(dp_shard=2), 2, update="fused", offload=("parameters", "activations")), 8,
    ),
    "zero": (Plan(ZeRO(), ParallelDegrees(dp_replicate=2)), 4),
    "1f1b and ddp": (Plan(DDP(), ParallelDegrees(pp=2, dp_replicate=2), model_parallel=piped("1f1b")), 16),
    "interleaved": (
        Plan(DDP(), ParallelDegrees(pp=2), model_parallel=piped("interleaved1f1b", stages_per_rank=2)), 8,
    ),
    "tensor and ddp": (Plan(DDP(), ParallelDegrees(dp_replicate=2, tp=2), 2, model_parallel=(Tensor(),)), 8),
    "tensor and ddp, fused": (
        Plan(DDP(), ParallelDegrees(dp_replicate=2, tp=2), update="fused", model_parallel=(Tensor(),)), 8,
    ),
    "tensor and fsdp, fused": (
        Plan(FSDP(), ParallelDegrees(dp_shard=2, tp=2), update="fused", model_parallel=(Tensor(),)), 8,
    ),
    "tensor along the sequence, fused": (
        Plan(DDP(), ParallelDegrees(tp=2), update="fused", model_parallel=(Tensor(sequence_parallel=True),)), 2,
    ),
    "tensor and 1f1b": (Plan(DDP(), ParallelDegrees(pp=2, tp=2), model_parallel=(*piped("1f1b"), Tensor())), 8),
    "tensor along the sequence, interleaved": (
        Plan(DDP(), ParallelDegrees(pp=2, tp=2), model_parallel=(
            *piped("interleaved1f1b", stages_per_rank=2), Tensor(sequence_parallel=True))), 8,
    ),
    "context and ddp": (
        Plan(DDP(), ParallelDegrees(dp_replicate=2, cp=2), model_parallel=(Context(method="ring"),)), 4,
    ),
    "context by gathers and fsdp": (
        Plan(FSDP(), ParallelDegrees(cp=2), model_parallel=(Context(load_balance=False),)), 2,
    ),
    "context and tensor": (
        Plan(DDP(), ParallelDegrees(cp=2, tp=2), update="fused", model_parallel=(Context(method="ring"), Tensor())), 2,
    ),
    "context and tensor along the sequence, fsdp": (
        Plan(FSDP(), ParallelDegrees(cp=2, tp=2), update="fused", model_parallel=(
            Context(load_balance=False), Tensor(sequence_parallel=True))), 2,
    ),
    "context and 1f1b": (
        Plan(DDP(), ParallelDegrees(pp=2, cp=2), model_parallel=(*piped("1f1b"), Context(method="ring"))), 8,
    ),
    "zbv": (Plan(DDP(), ParallelDegrees(pp=2), model_parallel=piped("zbvzerobubble")), 8),
    "dualpipev": (Plan(FSDP(), ParallelDegrees(pp=2, dp_shard=2), model_parallel=piped("dualpipev")), 16),
    "tensor along the sequence and fsdp": (
        Plan(FSDP(), ParallelDegrees(dp_shard=2, tp=2), model_parallel=(Tensor(sequence_parallel=True),)), 4,
    ),
    "tensor along the sequence": (
        Plan(DDP(), ParallelDegrees(tp=2), model_parallel=(Tensor(sequence_parallel=True, loss_parallel=False),)), 2,
    ),
}  # fmt: skip
"""Plan, and its global batch."""


@pytest.fixture(scope="module")
def sources():
    """A source for each network and update, read once."""
    workloads = {
        "plain": Workload(NETWORK, mode="training_step", optimizer="adamw"),
        "clipped": Workload(NETWORK, mode="training_step", optimizer=Update("adamw", clip_norm=0.01)),
        "shared": Workload(f"{FOLDER / 'small_lm.py'}:make_tied", mode="training_step", optimizer="adamw"),
    }
    workloads |= {one: replace(workloads["plain"], precision=one) for one in ("bf16-fsdp", "bf16-fsdp-pure")}
    workloads["experts"] = Workload(f"{FOLDER / 'small_lm.py'}:make_experts", mode="training_step", optimizer="adamw")
    workloads["llama"] = Workload(f"{FOLDER / 'small_lm.py'}:make_llama", mode="training_step", optimizer="adamw")
    return {name: PredictedSource(one, devices.get("h100")) for name, one in workloads.items()}


@pytest.fixture
def source(sources):
    return sources["plain"]


EXPERTS = {
    "experts": (Plan(DDP(), ParallelDegrees(ep=2), 2, model_parallel=(Expert(),)), 8),
    "experts and fsdp along them": (Plan(FSDP(), ParallelDegrees(ep=2), model_parallel=(Expert(),)), 4),
    "experts and fsdp, fused": (
        Plan(FSDP(), ParallelDegrees(dp_shard=2, ep=2), update="fused", model_parallel=(Expert(),)), 8,
    ),
}  # fmt: skip
"""In the last one two ranks shard one expert, along its second dimension."""
CLIPPED = {
    "fsdp": (Plan(FSDP(), ParallelDegrees(dp_shard=2)), 4),
    "hsdp": (Plan(HSDP(), ParallelDegrees(dp_replicate=2, dp_shard=2)), 8),
    "ddp": (Plan(DDP(), ParallelDegrees(dp_replicate=2)), 4),
    "tensor": (Plan(DDP(), ParallelDegrees(tp=2), model_parallel=(Tensor(),)), 2),
    "tensor along the sequence": (
        Plan(DDP(), ParallelDegrees(tp=2), model_parallel=(Tensor(sequence_parallel=True),)), 2,
    ),
    "tensor and fsdp": (Plan(FSDP(), ParallelDegrees(dp_shard=2, tp=2), model_parallel=(Tensor(),)), 4),
    "tensor along the sequence and fsdp": (
        Plan(FSDP(), ParallelDegrees(dp_shard=2, tp=2), model_parallel=(Tensor(sequence_parallel=True),)), 4,
    ),
    "1f1b": (Plan(DDP(), ParallelDegrees(pp=2), model_parallel=piped("1f1b")), 8),
    "tensor and 1f1b": (Plan(DDP(), ParallelDegrees(pp=2, tp=2), model_parallel=(*piped("1f1b"), Tensor())), 8),
}  # fmt: skip
SHARED = {
    "tensor": (Plan(DDP(), ParallelDegrees(tp=2), model_parallel=(Tensor(),)), 2),
    "tensor and fsdp": (Plan(FSDP(), ParallelDegrees(dp_shard=2, tp=2), model_parallel=(Tensor(),)), 4),
    "1f1b and ddp": (Plan(DDP(), ParallelDegrees(pp=2, dp_replicate=2), model_parallel=piped("1f1b")), 16),
    "1f1b and fsdp": (Plan(FSDP(), ParallelDegrees(pp=2, dp_shard=2), model_parallel=piped("1f1b")), 16),
    "tensor and 1f1b": (Plan(DDP(), ParallelDegrees(pp=2, tp=2), model_parallel=(*piped("1f1b"), Tensor())), 8),
    "zbv": (Plan(DDP(), ParallelDegrees(pp=2), model_parallel=piped("zbvzerobubble")), 8),
}


MESSAGES = {"all_to_all": ("send", "recv")}
"""A ring's messages are all-to-alls in which each rank sends everything to one other."""


def on_gloo(kind, size, ranks):
    return (kind if kind in ("send", "recv") else Collective(kind, size, ranks, "gloo").runs_as.kind), size


def of_one(exchange):
    """An all-gather by the bytes that a rank gives, as a recording has it."""
    many = len(exchange.participants) if exchange.kind == "all_gather" else 1
    return replace(exchange, bytes=exchange.bytes // many)


def script_of(source, plan, batch):
    work = source.work(micro_batch_of(plan, batch), plan.degrees, plan.model_parallel)
    return work, TorchScript(source.workload, plan, batch, work.rank).text


def recorded(text, plan, folder, run):
    """Run a script; what each rank exchanges in its last step."""
    script = folder / "script.py"
    script.write_text(text)
    run(FOLDER / "recorded_steps.py", str(script), str(folder), ranks=plan.ranks, STEPS=str(STEPS))
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(plan.ranks)]


def torchrun(*words, ranks, **variables):
    """Start ranks as a user does."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    paths = os.pathsep.join([str(FOLDER.parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run([*command, *words], capture_output=True, text=True, env=environment, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


EVERY = [
    *(("plain", name, *one) for name, one in PLANS.items()),
    *(("experts", name, *one) for name, one in EXPERTS.items()),
    *(("clipped", name, *one) for name, one in CLIPPED.items()),
    *(("shared", name, *one) for name, one in SHARED.items()),
    *((one, "fsdp", *CLIPPED["fsdp"]) for one in ("bf16-fsdp", "bf16-fsdp-pure")),
    ("bf16-fsdp", "hsdp", *CLIPPED["hsdp"]),
    ("llama", "tensor", *SHARED["tensor"]),
    ("llama", "tensor and fsdp", *SHARED["tensor and fsdp"]),
]


@pytest.mark.parametrize(("kind", "name", "plan", "batch"), EVERY, ids=lambda one: one if isinstance(one, str) else "")
def test_a_script_exchanges_what_its_plan_says(kind, name, plan, batch, sources, tmp_path, forked_jobs):
    work, text = script_of(sources[kind], plan, batch)
    found = recorded(text, plan, tmp_path, forked_jobs.run)
    topology = replace(fitted(AlphaBeta(1e-4, 1e-9), plan.ranks), host=cluster.get("dgx-h100").host)
    lowered = lower_work(work, plan, topology, fold=False)
    for rank in range(plan.ranks):
        messages = MESSAGES if plan.degrees.cp > 1 else {}
        ran = [(one, size) for kind, size in found[rank] for one in messages.get(kind, (kind,))]
        predicted = [on_gloo(*row, plan.ranks) for row in rank_rows(map(of_one, lowered.graph.exchanges), rank)]
        assert Counter(ran) == Counter(predicted)
        sent = [[size for one, size in rows if one == "send"] for rows in (ran, predicted)]
        assert sent[0] == sent[1]
        if plan.degrees.tp > 1 and plan.ranks == plan.degrees.tp:
            assert ran == predicted, "one thread exchanges all, one after the other"


def test_a_script_of_torchrun_exchanges_the_same(source, tmp_path, forked_jobs):
    plan, batch = PLANS["ddp, 2 batches"]
    _, text = script_of(source, plan, batch)
    assert recorded(text, plan, tmp_path, torchrun) == recorded(text, plan, tmp_path, forked_jobs.run)


def test_what_no_script_can_have_is_refused(source):
    tensor = Plan(DDP(), ParallelDegrees(dp_replicate=2), synchrony=Asynchronous())
    work = source.work(2, ParallelDegrees())
    with pytest.raises(CdmppError, match="PyTorch has no such loop"):
        TorchScript(source.workload, tensor, 4, work.rank)
    cut = Plan(DDP(), ParallelDegrees(pp=2), model_parallel=piped("1f1b", cuts=("scaled_dot_product_attention_2#29",)))
    with pytest.raises(CdmppError, match=r"no module begins|pipeline.cuts"):
        script_of(source, cut, 8)


@pytest.mark.parametrize("how", ["full", "attention"])
def test_a_script_runs_again_what_its_workload_does(how, tmp_path):
    """It runs here, and its backward pass runs as many products again as the step that is predicted."""
    from torch.utils._python_dispatch import TorchDispatchMode

    workload = Workload(NETWORK, mode="training_step", optimizer="adamw", recompute=how)
    work = PredictedSource(workload, devices.get("h100")).work(2, ParallelDegrees())
    text = TorchScript(workload, Plan(), 2, work.rank).text
    script = runpy.run_path(str(_written(tmp_path / f"{how}.py", text)))
    counted = Counter()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            counted[function.overloadpacket.__name__] += 1
            return function(*args, **(kwargs or {}))

    lines = [line.strip() for line in text.splitlines()]
    assert ("with AttentionAgain():" in lines) == (how == "attention")
    assert ("block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)" in lines) == (
        how == "full"
    )
    if how == "attention":
        model, (inputs, target) = script["make_model"](), script["make_batch"](2)
        for mode in (contextlib.nullcontext(), script["AttentionAgain"]()):
            counted.clear()
            with Count():
                with mode:
                    loss = script["loss_of"](model(*inputs), target)
                loss.backward()
            found = sum(count for name, count in counted.items() if name.endswith("attention_for_cpu"))
            expected = sum("scaled_dot_product" in op.name and op.phase == "forward" for op in work.rank.ops)
            assert found == expected * (1 if isinstance(mode, contextlib.nullcontext) else 2)


def _written(path, text):
    path.write_text(text)
    return path


def test_recomputations_that_no_script_can_have_are_refused(source):
    rank = source.work(2, ParallelDegrees()).rank
    again = {one: Workload(NETWORK, mode="training_step", recompute=one) for one in ("op", "attention")}
    with pytest.raises(CdmppError, match="recompute op: give a file that ends in .toml"):
        TorchScript(again["op"], Plan(), 2, rank)
    piped_plan = Plan(DDP(), ParallelDegrees(pp=2), model_parallel=piped("1f1b"))
    with pytest.raises(CdmppError, match="recompute attention in a pipeline"):
        TorchScript(again["attention"], piped_plan, 8, rank)
    with pytest.raises(CdmppError, match="recompute attention: give none, full or op"):
        TorchtitanConfig(replace(LLAMA, recompute="attention"), Plan(FSDP(), ParallelDegrees(dp_shard=2)), 2, rank)


def test_types_that_only_fsdp_keeps_apart_are_refused_without_it(sources):
    with pytest.raises(CdmppError, match="precision bf16-fsdp without FSDP: give a plan of fsdp or hsdp, or bf16"):
        script_of(sources["bf16-fsdp"], Plan(DDP(), ParallelDegrees(dp_replicate=2)), 4)


def test_a_network_in_memory_has_no_script():
    import torch

    workload = Workload(torch.nn.Linear(4, 4), (torch.randn(2, 4),), mode="training_step", loss="mse")
    source = PredictedSource(workload, devices.get("h100"))
    plan = Plan(DDP(), ParallelDegrees(dp_replicate=2))
    with pytest.raises(CdmppError, match="name the network"):
        _ = TorchScript(workload, plan, 4, source.work(2, plan.degrees).rank).text


LLAMA = Workload("hf:meta-llama/Llama-3.1-8B", mode="training_step", precision="bf16", sequence=8192)


def test_a_configuration_of_torchtitan_says_the_plan(source):
    rank = source.work(2, ParallelDegrees()).rank
    plan = Plan(FSDP(reshard_after_forward=False), ParallelDegrees(dp_shard=8, pp=2), model_parallel=piped("1f1b"))
    told = tomllib.loads(TorchtitanConfig(LLAMA, plan, 64, rank).text)
    assert told["model"] == {"name": "llama3", "flavor": "8B"}
    assert told["training"]["local_batch_size"] * 8 == told["training"]["global_batch_size"] == 64
    assert told["training"]["dtype"] == "bfloat16" and told["training"]["seq_len"] == 8192
    own = told["parallelism"]
    assert (own["data_parallel_shard_degree"], own["pipeline_parallel_degree"]) == (8, 2)
    assert (own["pipeline_parallel_schedule"], own["pipeline_parallel_microbatch_size"]) == ("1F1B", 2)
    assert own["fsdp_reshard_after_forward"] == "never"
    assert told["activation_checkpoint"] == {"mode": "none"}


def test_what_torchtitan_does_not_have_is_refused(source):
    rank = source.work(2, ParallelDegrees()).rank
    with pytest.raises(CdmppError, match=r"hf:Llama-3\.1-8B"):
        TorchtitanConfig(source.workload, Plan(), 2, rank)
    with pytest.raises(CdmppError, match="give ddp, fsdp or hsdp"):
        TorchtitanConfig(LLAMA, Plan(ZeRO(), ParallelDegrees(dp_replicate=2)), 4, rank)
    for plan, why in (
        (Plan(FSDP(prefetch=2), ParallelDegrees(dp_shard=2)), "prefetch 2"),
        (Plan(FSDP(), ParallelDegrees(dp_shard=2), offload=("activations",)), "activations on the host"),
    ):
        with pytest.raises(CdmppError, match=why):
            TorchtitanConfig(LLAMA, plan, 4, rank)
    with pytest.raises(CdmppError, match="some blocks are recomputed"):
        TorchtitanConfig(LLAMA, Plan(recompute=("blocks.0",)), 4, rank)
