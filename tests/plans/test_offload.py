"""What lies in the memory of the host: copies and bytes by hand, real runs on a CPU, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp import Workload, devices
from cdmpp.collectives import cluster, interconnect
from cdmpp.collectives.host import MEMORY_REACHED, REACHED, Host
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted, topology_of
from cdmpp.errors import CdmppError
from cdmpp.network.training_step import StepMemory
from cdmpp.network.update import Update
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.evaluate import evaluate
from cdmpp.plans.framework_answer import framework_answer
from cdmpp.plans.frameworks import MEGATRON
from cdmpp.plans.host_update import PASSES, traffic_bytes
from cdmpp.plans.lower import lower_work
from cdmpp.plans.memory_answer import host_warnings, memory_answer
from cdmpp.plans.plan import Plan, plan_on
from cdmpp.plans.plan_file import plan_from_dict
from cdmpp.plans.sources.source import RankWork, StepSource
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.hsdp import HSDP
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.transformer_shape import TransformerShape
from cdmpp.steps.bounds import computed_s, exchanged_s
from cdmpp.steps.from_layers import Layer, graph_of_layers
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.transforms.offload import TO_DEVICE, TO_HOST

PART = 8_000_000
"""Bytes of a rank's part of a layer."""
MS = 1e-3
ADAMW = Update("adamw")


def host(copy_s: float, update_s: float = 0.0, layers: int = 3) -> Host:
    """Copies of a part take ``copy_s``, and AdamW's 20 passes over all parts ``update_s`` on a node of one rank."""
    gbps = 20 * layers * PART / update_s / MEMORY_REACHED / 1e9 if update_s else 1e5
    link = replace(interconnect.get("pcie5"), bandwidth_gbps=PART / copy_s / REACHED / 1e9, latency_s=None)
    return Host(link, 100.0, max(gbps, 1.0))


def work(ranks: int = 2, layers: int = 3, update: Update | None = ADAMW) -> RankWork:
    """Layers of 1 ms forward and 2 ms backward, each with ``PART`` bytes of parameters for each rank."""
    whole = ranks * PART
    rows = [Layer(f"layer.{i}", MS, 2 * MS, whole, 1000) for i in range(layers)]
    held = StepMemory(layers * whole, layers * whole, 2 * layers * whole, 0, 0, layers * 1000, 0)
    return RankWork(graph_of_layers(rows, update_s=1e-9).ranks[0], memory=held, update=update)


def links(ranks: int, own: Host | None):
    return replace(fitted(AlphaBeta(0.0, 1e-15), ranks, "nccl"), host=own)


def spans(plan: Plan, own: Host, of: RankWork | None = None):
    """The seconds of a step, and the milliseconds at which the copies of each stream begin."""
    topology = links(plan.ranks, own)
    found = replay(lower_work(of or work(plan.ranks), plan, topology).graph, topology)
    begin, rank = found.window_s[0], found.graph.ranks[0]
    copies: dict[str, list[float]] = {TO_DEVICE: [], TO_HOST: []}
    for key, span in found.spans.items():
        if key.kind == "op" and key.rank == 0 and (op := rank.ops[key.place]).stream in copies and op.duration_s:
            copies[op.stream].append((span.start_s - begin) / MS)
    return found.step_s, copies


OUT = plan_on(2, "fsdp", offload=("parameters",))


def test_short_copies_hide_but_for_those_that_nothing_runs_beside():
    """Copies of 0.5 ms: the first one, that of the last layer for the backward pass, and the last gradients.

    They are communication of the critical path, and no computing.
    """
    step_s, copies = spans(OUT, host(0.5 * MS))
    topology = links(2, host(0.5 * MS))
    critical_s = replay(lower_work(work(), OUT, topology).graph, topology).critical_s
    assert critical_s["host copy"] == pytest.approx(1.5 * MS, rel=1e-3)
    assert critical_s["forward"] + critical_s["backward"] == pytest.approx(9 * MS, rel=1e-3)
    assert step_s == pytest.approx((0.5 + 3 + 0.5 + 6 + 0.5) * MS, rel=2e-3)
    assert copies[TO_DEVICE] == pytest.approx([0, 0.5, 1.5, 3.5, 4, 6], abs=1e-3)
    assert copies[TO_HOST] == pytest.approx([6, 8, 10], abs=1e-3)


def test_long_copies_make_the_step():
    """Copies of 10 ms, one after the other: three before the last forward pass ends, three more; two are left then.

    Where parameters stay gathered after the forward pass, three come and three go.
    """
    assert spans(OUT, host(10 * MS))[0] == pytest.approx((30 + 1 + 30 + 20) * MS, rel=1e-3)
    kept = replace(OUT, strategy=FSDP(reshard_after_forward=False))
    assert spans(kept, host(10 * MS))[0] == pytest.approx((30 + 3 + 30) * MS, rel=1e-3)


@pytest.mark.parametrize("copy_s", [0.1 * MS, 0.5 * MS, 3 * MS, 10 * MS])
@pytest.mark.parametrize("kind", ["parameters", "activations"])
def test_copies_are_communication_of_both_bounds(kind, copy_s):
    """Three layers of 3 ms and three copies each of forward, backward and gradients; four blocks, three each way."""
    (plan, of, computing_s, most, least) = {
        "parameters": (OUT, work(), 9 * MS, 9, 6), "activations": (RESULTS, saving(), 12 * MS, 6, 3),
    }[kind]  # fmt: skip
    topology = links(2, host(copy_s))
    graph = lower_work(of, plan, topology).graph
    least_s, most_s = exchanged_s(graph, topology)
    assert computed_s(graph, topology) == pytest.approx(computing_s, rel=2e-3)  # and the update
    assert (least_s, most_s) == pytest.approx((least * copy_s, most * copy_s), rel=1e-3)
    step_s = replay(graph, topology).step_s
    assert max(computing_s, least_s) * 0.999 <= step_s <= (computing_s + most_s) * 1.001


def test_only_the_last_accumulated_batch_sends_gradients():
    _, copies = spans(replace(OUT, gradient_accumulation_steps=2), host(0.5 * MS))
    assert (len(copies[TO_DEVICE]), len(copies[TO_HOST])) == (12, 3)


def test_replicas_of_shards_copy_what_they_have_summed():
    """The all-reduce of two groups leaves a rank as many bytes as a reduce-scatter of one does."""
    both = Plan(HSDP(), ParallelDegrees(dp_replicate=2, dp_shard=2), offload=("parameters",))
    step_s, copies = spans(both, host(10 * MS), work(2))
    assert step_s == pytest.approx(81 * MS, rel=1e-3) and len(copies[TO_HOST]) == 3


def test_the_host_updates_for_all_devices_of_a_node_at_once():
    """20 passes over 24 MB take 4 ms for one rank, so 8 ms for two."""
    step_s, _ = spans(OUT, host(0.5 * MS, update_s=4 * MS))
    assert step_s == pytest.approx((10.5 + 8) * MS, rel=2e-3)


class _Toy(StepSource):
    def __init__(self, own=None):
        self.own = own or work()

    def work(self, batch, degrees, strategies=()):
        return self.own

    def limits(self):
        return {}


def test_bytes_of_both_memories_by_hand():
    """Three layers of 8 MB a rank: parameters, gradients and two states of each are on the host.

    On the device are two gathered layers (16 MB each) and the part of one that came, and at most the whole gradients of
    all three and a result.
    """
    found, kept = (
        memory_answer(_Toy(), one, links(2, host(MS)), 2, False).ranks[0] for one in (OUT, replace(OUT, offload=()))
    )
    assert (found.host_bytes, kept.host_bytes) == (12 * PART, 0)
    assert (found.parts.parameters, found.parts.optimizer) == (0, 0)
    assert found.parts.communication == 2 * 2 * PART + PART
    assert kept.parts.communication == 2 * 2 * PART
    assert found.parts.gradients + found.parts.activations == 3 * 2 * PART + 1000
    assert kept.parts.parameters == 3 * PART and kept.parts.optimizer == 6 * PART


def test_a_host_that_is_too_small_is_told():
    small = replace(host(MS), memory_gb=1)
    many = memory_answer(_Toy(), OUT, replace(links(2, small), nodes=1), 2, False, limit_bytes=1e12)
    assert many.fits and many.host_limit_bytes == 0.5e9
    assert not replace(many, host_limit_bytes=12 * PART - 1.0).fits
    huge = replace(host(MS, layers=30), memory_gb=1)
    told = host_warnings(work(layers=30), OUT, links(2, huge), lower_work(work(layers=30), OUT, links(2, huge)).stages)
    assert len(told) == 1 and "leaves 960 MB on its host, which has 500 MB" in told[0]
    assert host_warnings(work(), OUT, links(2, host(MS)), lower_work(work(), OUT, links(2, host(MS))).stages) == ()


def saving(blocks: int = 4) -> RankWork:
    """Blocks that leave ``PART`` bytes each for the backward pass."""
    rows = [Layer(f"layer.{i}", MS, 2 * MS, 4000, 1000, saved_bytes=PART) for i in range(blocks)]
    held = StepMemory(4000 * blocks, 4000 * blocks, 8000 * blocks, 0, 0, PART * blocks, 0)
    return RankWork(graph_of_layers(rows).ranks[0], memory=held, update=ADAMW)


def _again(rank):
    """One op of the backward pass runs an op of the forward pass again."""
    ops = [replace(op, is_recomputed=op.name == "layer.3 backward") for op in rank.ops]
    return replace(rank, ops=tuple(ops))


RESULTS = plan_on(2, "ddp", offload=("activations",))


@pytest.mark.parametrize(("copy_s", "expected_s"), [(3 * MS, 21 * MS), (1 * MS, 12 * MS), (0.5 * MS, 12 * MS)])
def test_results_leave_while_the_next_block_runs_and_come_back_so(copy_s, expected_s):
    """Four blocks of 1 and 2 ms, of which three are copied. Up to 1 ms (2 ms back) nothing waits.

    Copies of 3 ms: the first block ends at 1, and the end of each later one waits for the copy of that before: 4, 7,
    10. Back come those of blocks 2, 1 and 0 at 13, 16 and 19, each while the block behind it runs, and 2 ms follow.
    """
    step_s, copies = spans(RESULTS, host(copy_s), saving())
    assert step_s == pytest.approx(expected_s, rel=1e-4)
    assert [len(one) for one in copies.values()] == [3, 3]


def test_two_blocks_of_results_are_on_the_device_at_a_time():
    found, kept = (
        memory_answer(_Toy(saving()), one, links(2, host(MS)), 2, False).ranks[0]
        for one in (RESULTS, replace(RESULTS, offload=()))
    )
    assert (found.host_bytes, kept.host_bytes) == (3 * PART, 0)
    assert kept.parts.activations == 4 * PART + 1000
    assert found.parts.activations == 2 * PART + 1000
    read = replace(saving().memory, live_bytes=4 * PART + 4 * 4000 + 1000)  # as the reader of a network counts it
    again = memory_answer(_Toy(replace(saving(), memory=read)), RESULTS, links(2, host(MS)), 2, False).ranks[0]
    assert again.parts == found.parts, "what left is no gradient"


@pytest.mark.parametrize("network", ["make", "make_llama"])
def test_real_blocks_leave_as_many_bytes_and_have_the_same_gradients(network):
    """The class of the script on a CPU: bytes of its copies are those that the read network has, block by block."""
    import torch

    from cdmpp.network.eager.runtime import EagerRuntime
    from cdmpp.plans.script.offloaded_blocks import OffloadedBlocks
    from cdmpp.plans.sources.predicted import PredictedSource
    from cdmpp.steps.transforms.offload_results import BlockResults
    from tests.plans.script import small_lm

    workload = Workload(f"{small_lm.__file__}:{network}", mode="training_step")
    source = PredictedSource(workload, devices.get("xeon-icelake"), EagerRuntime("torch-gpus"))
    results = BlockResults(source.work(2, ParallelDegrees()).rank)
    model, inputs = getattr(small_lm, network)()

    def gradients():
        model.zero_grad()
        model(*inputs).square().mean().backward()
        return [one.grad.clone() for one in model.parameters()]

    expected = gradients()
    made = OffloadedBlocks([model.get_submodule(one.name.removeprefix("inner.")) for one in results.blocks])
    for _ in range(2):
        found = gradients()
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    model(*inputs)
    sizes = tuple(sum(one["host"].numel() for one in own.values()) for own in made.kept[:-1])
    assert sizes == results.bytes and min(sizes) > 0 and not made.kept[-1]
    assert not any("device" in one for own in made.kept for one in own.values())


@pytest.mark.parametrize(("optimizer", "implementation"), list(PASSES))
def test_the_host_reads_and_writes_what_torch_does(optimizer, implementation):
    """Counted call by call on a CPU: a tensor that a call reads twice is read once, and numbers do not count.

    Gradients are written only where they were scaled.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    size, passed = 1000, 0

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal passed
            out = function(*args, **(kwargs or {}))
            flat = [
                one for each in (args, tuple((kwargs or {}).values())) for one in torch.utils._pytree.tree_leaves(each)
            ]
            read = {one.data_ptr() for one in flat if isinstance(one, torch.Tensor) and one.numel() == size}
            schema = function._schema
            given = [*args, *(kwargs or {}).values()]
            written = [
                leaf for argument, one in zip(schema.arguments, given, strict=False)
                if argument.alias_info is not None and argument.alias_info.is_write and argument.name != "grads"
                for leaf in torch.utils._pytree.tree_leaves(one)
            ]  # fmt: skip
            if not written:
                written = torch.utils._pytree.tree_leaves(out)
            passed += len(read) + sum(isinstance(one, torch.Tensor) and one.numel() == size for one in written)
            return out

    parameter = torch.nn.Parameter(torch.ones(size))
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
    made = kind([parameter], 1e-3, **({"momentum": 0.9} if optimizer == "sgd" else {}), fused=implementation == "fused")
    parameter.grad = torch.ones(size)
    made.step()
    with Count():
        made.step()
    assert passed == PASSES[optimizer, implementation]


def test_traffic_by_hand():
    """Two states of 3 kB each: 20 passes over 3 kB, or 7 where one kernel does all."""
    assert traffic_bytes(Update("adamw"), 6000, is_fused=False) == 60_000
    assert traffic_bytes(Update("adamw"), 6000, is_fused=True) == 21_000
    assert traffic_bytes(Update("none"), 0, is_fused=False) == 0


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"offload": ("weights",)}, "expected one of|parameters"),
        ({"offload": ("parameters", "parameters")}, "twice"),
        ({"strategy": DDP(), "degrees": ParallelDegrees(dp_replicate=2)}, "take fsdp or hsdp"),
        ({"degrees": ParallelDegrees()}, "dp_shard above 1"),
        ({"degrees": ParallelDegrees(dp_shard=2, pp=2), "model_parallel": (Pipeline(micro_batches=2),)}, "degrees.pp"),
        ({"strategy": FSDP(scatter_each_batch=True), "gradient_accumulation_steps": 2}, "scatter_each_batch"),
        ({"devices": ("h100", "h100")}, "devices or shares"),
        ({"offload": ("activations",), "recompute": ("layer.0",)}, "leave out one of the two"),
    ],
)
def test_plans_that_cannot_leave_parameters_are_refused(settings, why):
    given = {"strategy": FSDP(), "degrees": ParallelDegrees(dp_shard=2), "offload": ("parameters",)} | settings
    with pytest.raises(CdmppError, match=why):
        Plan(**given)


@pytest.mark.parametrize(
    ("of", "own", "why"),
    [
        (work(), None, "nothing describes the host of"),
        (work(update=None), host(MS), "says no optimizer"),
        (work(update=Update("adamw", clip_norm=1.0)), host(MS), "without clipping"),
        (work(update=Update("adafactor")), host(MS), "known there are sgd, adam, adamw"),
    ],
)
def test_jobs_whose_host_is_not_known_are_refused(of, own, why):
    with pytest.raises(CdmppError, match=why):
        lower_work(of, OUT, links(2, own))


@pytest.mark.parametrize(
    ("of", "own", "why"),
    [
        (saving(), None, "nothing describes the host of"),
        (saving(1), host(MS), "the network has 1 blocks"),
        (replace(saving(), rank=_again(saving().rank)), host(MS), "leave out --recompute"),
    ],
)
def test_networks_whose_blocks_cannot_leave_results_are_refused(of, own, why):
    with pytest.raises(CdmppError, match=why):
        lower_work(of, RESULTS, links(2, own))


def test_plans_are_written_and_read():
    assert plan_from_dict(OUT.to_dict()) == OUT
    assert "parameters on the host" in OUT.changes(plan_on(2, "fsdp"))


def test_clusters_describe_their_hosts(tmp_path):
    """A DGX A100: pairs of GPUs share 31.5 GB/s, of which copies reach 0.8; a copy of 12.6 GB takes a second."""
    own = topology_of(16, "a100", "dgx-a100").host
    assert own is not None and own.copy_s(12.6e9) == pytest.approx(1, rel=1e-3)
    assert own.copy_s(0) == 0 and own.passed_s(409.6e9 * 0.8, 8) == pytest.approx(8)
    assert topology_of(8, "h100", link="nvlink4").host is None
    file = tmp_path / "dgx-h100.yaml"
    text = (sheets := cluster.sheet_file("cluster", "cluster", "dgx-h100")).read_text()
    assert sheets.name == "dgx-h100.yaml"
    for wrong, why in (
        ("memory_gb: 0", "memory_gb"), ("memory_gib: 1", "memory_gib"), ("link: pcie9", "pcie5"),
    ):  # fmt: skip
        name = wrong.partition(":")[0].replace("gib", "gb")
        now = "\n".join(
            line.replace(f"{name}: {'2000' if name == 'memory_gb' else 'pcie5'}", wrong) for line in text.splitlines()
        )
        file.write_text(now)
        with pytest.raises(CdmppError, match=why):
            cluster.read_cluster(file)
        cluster.read_cluster.cache_clear()


def test_searches_and_frameworks_refuse_what_they_do_not_know():
    graph = StepGraph(tuple(replace(work().rank, rank=one) for one in range(2)))
    with pytest.raises(CdmppError, match="leave nothing there"):
        evaluate(OUT, graph, links(2, host(MS)))
    shape = TransformerShape(2, 64, 4, 4, 128, 100, 16)
    with pytest.raises(CdmppError, match="leave it out"):
        framework_answer(shape, MEGATRON, RESULTS, 2, is_gpu=True)
