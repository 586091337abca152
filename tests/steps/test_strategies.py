"""What each scheme exchanges and when, as PyTorch does it; links carry as many bytes as was said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import CdmppError
from cdmpp.network.training_step import StepMemory
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.parameter_server import ParameterServer
from cdmpp.steps.exchange import START
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import Gradient
from cdmpp.steps.strategy_replay import replay_strategy
from cdmpp.steps.tasks import step_tasks
from tests.steps.toy_graph import MIB, WIRE, graph_of, rank_graph, ranks_of, wires


def test_buckets_are_filled_as_gradients_become_ready():
    work = rank_graph(sizes=[20 * MIB, 20 * MIB, 20 * MIB, MIB, MIB // 2])
    names = [[one.name for one in bucket] for bucket in DDP().buckets(work)]
    # the last layer is ready first; 1 MiB is not reached before two of them, then 25 MiB not before two more
    assert names == [["layer 4", "layer 3"], ["layer 2", "layer 1"], ["layer 0"]]
    assert [len(bucket) for bucket in DDP((MIB,)).buckets(work)] == [2, 1, 1, 1]
    assert [len(bucket) for bucket in DDP((100 * MIB,)).buckets(work)] == [5]


def test_gradients_of_one_operation_go_in_reverse_order():
    work = replace(rank_graph(), gradients=(Gradient("weight", 8, 5), Gradient("bias", 4, 5), Gradient("last", 4, 4)))
    assert [one.name for one in DDP().buckets(work)[0]] == ["last", "bias", "weight"]


def test_a_bucket_leaves_after_the_one_before():
    """Rank 1 has its gradients in another order than rank 0, whose order counts."""
    one, other = ranks_of(2, sizes=[2 * MIB] * 2).ranks
    first, second = other.gradients
    other = replace(other, gradients=(replace(first, ready_after=2), replace(second, ready_after=3)))
    graph = graph_of(one, other)
    made = DDP().exchanges(graph)
    assert [(one.bytes, one.after) for one in made] == [(2 * MIB, {0: 2, 1: 3}), (2 * MIB, {0: 3, 1: 2})]
    spans = replay_strategy(graph, DDP(), wires(2)).spans
    buckets = [(span.name, span.start_s) for span in spans if span.rank == 0 and span.kind == "all_reduce"]
    assert [name for name, _ in buckets] == ["bucket 0", "bucket 1"]


def test_sharded_gathers_one_ahead_and_keeps_the_root():
    rank = rank_graph(sizes=[MIB, 2 * MIB, 3 * MIB])  # forward 0 1 2, backward 3 4 5, update 6
    modules = (ModuleSpan("root", 8, (0, 2), (3, 5), is_kept=True), *rank.modules[1:])
    made = FSDP().exchanges(graph_of(replace(rank, modules=modules)))
    assert [(one.name, tuple(one.after.values()), one.before[0]) for one in made] == [
        ("root forward", (START,), (0,)),
        ("layer 1 forward", (START,), (1,)),
        ("layer 2 forward", (0,), (2,)),  # where layer 1 begins
        ("layer 2 backward", (2,), (3,)),
        ("layer 1 backward", (2,), (4,)),  # where layer 2 begins
        ("layer 2 gradients", (3,), (5,)),  # layer 1 may go on beside it, what follows may not
        ("layer 1 gradients", (4,), (6,)),
        ("root gradients", (5,), (6,)),
    ]
    assert {one.kind for one in made} == {"all_gather", "reduce_scatter"}


def test_sharded_without_overlap_stands_still():
    made = FSDP(overlap=False).exchanges(ranks_of(1, sizes=[MIB, MIB]))
    assert [(tuple(one.after.values()), one.before[0]) for one in made] == [
        ((START,), (0,)), ((0,), (1,)), ((1,), (2,)), ((1,), (2,)), ((2,), (3,)), ((3,), (4,)),
    ]  # fmt: skip


def test_fsdp_pads_the_first_dimension_of_every_parameter():
    """Linear(64, 5) over 4 ranks: 8 rows of 256 bytes and 8 of 4, as gloo was seen to gather and to scatter."""
    graph = ranks_of(4, sizes=[5 * 64 * 4 + 5 * 4])

    def padded(rank):
        return replace(rank, modules=(replace(rank.modules[0], rows=((5, 256, 0), (5, 4, 0))),))

    graph = replace(graph, ranks=tuple(map(padded, graph.ranks)))
    assert {one.bytes for one in FSDP().exchanges(graph)} == {8 * 256 + 8 * 4}
    module = graph.ranks[0].modules[0]
    assert [module.padded_bytes(ranks) for ranks in (1, 2, 5, 16)] == [1300, 6 * 260, 5 * 260, 16 * 260]
    held = StepMemory(1300, 1300, 2600, 0, 0, 0, 0)
    assert _own(held, graph) == 2 * 260 * 4  # two rows of all four
    assert _own(held, ranks_of(4)) == 1300


def _own(held, graph):
    own = FSDP().rank_bytes(held, graph.ranks[0].modules, {"dp_shard": 4})
    return own.parameter_bytes + own.state_bytes + own.gradient_bytes


def test_padding_is_that_of_torch():
    torch = pytest.importorskip("torch")
    common = pytest.importorskip("torch.distributed.fsdp._fully_shard._fsdp_common")
    for ranks in (1, 2, 3, 4, 8, 60):
        for shape in ((1,), (5,), (5, 64), (64, 3, 3), (7, 1), (120, 2)):
            whole = torch.Size(shape)
            module = ModuleSpan("m", whole.numel(), (0, 0), (1, 1), rows=((shape[0], whole[1:].numel(), 0),))
            assert module.padded_bytes(ranks) == common._get_dim0_padded_size(whole, ranks).numel()


def test_padding_of_a_network_grows_with_its_ranks():
    """ResNet-50, as its first dimensions make it."""
    import torch
    from torchvision.models import resnet50

    with torch.device("meta"):
        shapes = [one.shape for one in resnet50().parameters()]
    rows = tuple((shape[0], 4 * shape[1:].numel(), 0) for shape in shapes)
    size = sum(count * each for count, each, _ in rows)
    module = ModuleSpan("all", size, (0, 0), (1, 1), rows=rows)
    ratios = [round(module.padded_bytes(ranks) / size, 2) for ranks in (8, 64, 256, 512)]
    assert ratios == [1.0, 1.0, 1.05, 1.34]


def test_a_rank_updates_its_own_part_alone():
    sharded = replay_strategy(ranks_of(4, update_s=4e-3), FSDP(), wires(4))
    assert sharded.shares[0].phase_s["update"] == pytest.approx(1e-3)
    traced = graph_of(*(replace(rank, update_shards=4) for rank in ranks_of(4, update_s=1e-3).ranks))
    assert replay_strategy(traced, FSDP(), wires(4)).iteration_s == pytest.approx(sharded.iteration_s)
    assert replay_strategy(traced, DDP(), wires(4)).shares[0].phase_s["update"] == pytest.approx(4e-3)


def test_parts_go_from_server_to_server():
    made = ParameterServer(servers=2, part_bytes=MIB).exchanges(ranks_of(3, sizes=[5 * MIB // 2, MIB]))
    assert [(one.name, one.server) for one in made] == [
        ("layer 1 part 0", 0), ("layer 0 part 0", 1), ("layer 0 part 1", 0), ("layer 0 part 2", 1),
    ]  # fmt: skip
    assert sum(one.bytes for one in made) == 7 * MIB // 2


def test_pushes_to_one_server_share_its_way_in():
    """By hand: three pushes at a third of the rate each, then three pulls on the way out."""
    found = replay_strategy(ranks_of(4, sizes=[3 * MIB]), ParameterServer(servers=1), wires(4))
    each_s = WIRE.alpha_s + 3 * 3 * MIB * WIRE.beta_s
    assert found.iteration_s == pytest.approx(4e-3 + 2 * each_s)
    assert found.full_overlap_s == pytest.approx(each_s - WIRE.alpha_s)
    assert found.no_overlap_s == pytest.approx(4e-3 + 2 * (each_s + 2 * WIRE.alpha_s))


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("scheme", [DDP(), FSDP(), ParameterServer(part_bytes=MIB)])
def test_links_carry_what_was_said(scheme, ranks):
    graph, topology = ranks_of(ranks, sizes=[ranks * MIB] * ranks), wires(ranks, alpha_s=0.0)
    carried = dict.fromkeys(topology.rates, 0.0)
    for task in step_tasks(graph.with_exchanges(scheme.exchanges(graph)), topology, "ring step", 1).tasks:
        for link in task.flow.links if task.flow else ():
            carried[link] += task.flow.bytes
    sent = replay_strategy(graph, scheme, topology, "ring step").sent_bytes
    # a message of 1 byte takes the time of that byte, which counts as latency here
    assert carried == pytest.approx(dict.fromkeys(carried, sent), rel=1e-4)


def test_what_does_not_fit_is_said():
    one, other = ranks_of(2).ranks
    for ranks, message in (((), "no rank does anything"), ((other, one), "rank 1 stands in place 0")):
        with pytest.raises(CdmppError, match=message):
            graph_of(*ranks)
    gradient = replace(one.gradients[0], bytes=0)
    for ranks, message in (
        ((one, rank_graph(1, [MIB] * 4)), r"gradients of rank 1 are not those of rank 0: \('layer 0', 1048576\)"),
        ((one, rank_graph(1, [4 * MIB] * 3)), "gradients of rank 1 are not those of rank 0: 3 against 4"),
        ((replace(one, gradients=(gradient,)),), "gradient 'layer 0' of rank 0 has 0 bytes"),
        ((replace(one, gradients=(replace(gradient, bytes=4, ready_after=0),)),), "op 0, which is not in the backward"),
    ):
        with pytest.raises(CdmppError, match=message):
            DDP().exchanges(graph_of(*ranks))
    with pytest.raises(CdmppError, match="needs modules, and this step has none"):
        FSDP().exchanges(graph_of(replace(one, modules=())))
    with pytest.raises(CdmppError, match="3 servers on 2 ranks: expected 1 to 2"):
        ParameterServer(servers=3).exchanges(graph_of(one, other))
    for wrong in (lambda: DDP((0,)), lambda: ParameterServer(part_bytes=0)):
        with pytest.raises(CdmppError, match="expected"):
            wrong()


def test_strategies_by_name():
    assert {kind.name for kind in STRATEGIES} >= {"ddp", "fsdp", "ps"}
    assert FSDP().on_backend("gloo") == FSDP(overlap=False)
    assert FSDP().on_backend("nccl") == FSDP() and DDP().on_backend("gloo") == DDP()
    with pytest.raises(CdmppError, match=r"unknown parallel strategy 'zeros'; .*zero"):
        STRATEGIES["zeros"]
