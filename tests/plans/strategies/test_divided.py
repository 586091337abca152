"""Divided convolutions: ranks that run what is predicted compute what one does, and send as many bytes."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch
from network.training_networks import Depthwise
from plans.sources.toy_source import source_of
from plans.strategies.divided_ranks import Ranks, check_gradients
from torch import nn
from torch.nn import functional

from cdmpp.collectives.topology import topology_of
from cdmpp.errors import CdmppError
from cdmpp.network.eager.step import export_step
from cdmpp.network.workload import Workload
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.distributed_step import replay_plan
from cdmpp.plans.lower import lower
from cdmpp.plans.plan import Plan
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.plans.strategies.spatial import _blocks, _Divided
from cdmpp.plans.strategies.windows import Window


class Images(nn.Module):
    """A stem, poolings, a stride, a skip, channels side by side, then an average and a dense layer."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 8, 7, 2, 3), nn.Conv2d(8, 8, 3, 1, 1, bias=False)
        self.second, self.third = nn.Conv2d(8, 16, 3, 2, 1), nn.Conv2d(8, 16, 1, 2)
        self.norm = nn.BatchNorm2d(16) if norm else nn.Identity()
        self.fourth, self.head = nn.Conv2d(32, 8, 5, padding="same"), nn.Linear(8, 4)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.stem(x)), 3, 2, 1)
        x = functional.gelu(self.first(x)) + x
        x = torch.cat([self.norm(self.second(x)), self.third(x)], 1)
        x = functional.avg_pool2d(functional.relu_(self.fourth(x)), 2)
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Volumes(nn.Module):
    """Convolutions over three axes, as of CosmoFlow, and a dense layer of all that is left."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv3d(4, 8, 3, 1, 1), nn.Conv3d(8, 8, 3, 2, 1), nn.Linear(8 * 64, 4)

    def forward(self, x):
        x = functional.max_pool3d(functional.leaky_relu(self.first(x)), 2)
        return self.head(functional.leaky_relu(self.second(x)).flatten(1))


IMAGES, VOLUMES = torch.randn(2, 3, 64, 64), torch.randn(2, 4, 16, 16, 16)


def divided_by(degree: str, ranks: int | tuple[int, ...], network: nn.Module, example: torch.Tensor):
    torch.manual_seed(0)
    step = export_step(Workload(network, example, mode="training_step"))
    whole = step.exported
    if isinstance(ranks, tuple):
        divided = _Divided(whole, ranks).run().along(degree, whole)
        return step, divided, Ranks(step, divided, {degree: math.prod(ranks)}, ranks)
    divided = STRATEGIES[degree]().divide(whole, ranks).along(degree, whole)
    return step, divided, Ranks(step, divided, {degree: ranks}, _blocks(whole, ranks) if degree == "spatial" else ())


CASES = [
    *[("spatial", ranks, Images, IMAGES) for ranks in (2, 4, (2, 2), (1, 4))],
    *[("spatial", ranks, Volumes, VOLUMES) for ranks in (2, (1, 2, 2), (2, 2, 2))],
    *[(degree, ranks, lambda: Images(norm=True), IMAGES) for degree in ("filter", "channel") for ranks in (2, 4)],
    *[(degree, 2, Depthwise, torch.randn(3, 4, 8, 8)) for degree in ("filter", "channel")],
    ("filter", 4, Volumes, VOLUMES),
    ("channel", 4, Volumes, VOLUMES),
]  # fmt: skip


@pytest.mark.parametrize(("degree", "ranks", "network", "example"), CASES)
def test_ranks_compute_what_one_does(degree, ranks, network, example):
    model = network()
    for one in model.modules():
        if isinstance(one, nn.Dropout):
            one.p = 0.0
    check_gradients(divided_by(degree, ranks, model, example)[-1])


SEVERAL = [
    {"spatial": 2, "filter": 2},
    {"spatial": 4, "channel": 2},
    {"filter": 2, "channel": 2},
    {"filter": 4, "channel": 2},
    {"spatial": 2, "filter": 2, "channel": 2},
]


def divided_along(degrees: dict[str, int], network: nn.Module, example: torch.Tensor):
    torch.manual_seed(0)
    step = export_step(Workload(network, example, mode="training_step"))
    divided = step.exported
    for name, ranks in degrees.items():
        divided = STRATEGIES[name]().divide(divided, ranks).along(name, divided)
    factors = _blocks(step.exported, degrees["spatial"]) if "spatial" in degrees else ()
    return step, divided, Ranks(step, divided, degrees, factors)


class Groups(nn.Module):
    """Convolutions of groups, divided by these."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1, groups=8)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = functional.gelu(self.second(functional.relu(self.first(x))))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


@pytest.mark.parametrize("network", [Images, Groups])
@pytest.mark.parametrize("degrees", SEVERAL, ids=str)
def test_ranks_along_several_degrees_compute_what_one_does(degrees, network):
    check_gradients(divided_along(degrees, network(), IMAGES)[-1])


def test_exchanges_of_an_earlier_division_have_the_bytes_of_the_later_one():
    """Each sum is of a part that the other division halves, in whichever order they are made; what is gathered is not.

    But the stem, which is whole along channels, has no input with a gradient.
    """

    def sent(*names):
        found = divided_along(dict.fromkeys(names, 2), Images(), IMAGES)[1]
        return Counter((one.degree, one.kind, one.when, one.name, one.bytes) for one in found.exchanges)

    both, apart = sent("filter", "channel"), sent("filter") + sent("channel")
    assert both == sent("channel", "filter") and sum(both.values()) == 5 + 4 + 4 + 4
    assert both == Counter((*one[:-1], one[-1] // (1 + (one[1] == "all_reduce"))) for one in apart.elements())


def test_an_exchange_behind_another_one_waits_for_it():
    """The sum over channels comes before filters are gathered, and no op is between them."""
    source = source_of(Images(), IMAGES)
    work = source.work(8, ParallelDegrees(filter=2, channel=2))
    pairs = [(a, b) for a, b in pairwise(work.exchanges) if b.follows]
    assert len(pairs) == 4 + 4 and all(a.after == b.after for a, b in pairs)
    forward = [(a, b) for a, b in pairs if work.rank.ops[a.after].phase == "forward"]
    assert {(a.kind, a.degree, b.kind, b.degree) for a, b in forward} == {
        ("all_reduce", "channel", "all_gather", "filter")
    }
    assert not any(one.follows for one in source.work(8, ParallelDegrees(filter=2)).exchanges)
    strategies = tuple(STRATEGIES[name]() for name in ("filter", "channel"))
    plan = Plan(degrees=ParallelDegrees(dp_replicate=2, filter=2, channel=2), model_parallel=strategies)
    made = lower(source, plan, topology_of(8, "t4", link="pcie4"), 16).graph
    assert sum(one.follows for one in made.exchanges) == len(pairs)
    assert replay_plan(source, plan, 8, device="t4", link="pcie4").iteration_s > 0


@pytest.mark.parametrize(("degree", "ranks", "network", "example"), CASES[:7])
def test_halos_are_as_large_as_what_a_rank_fetches(degree, ranks, network, example):
    _, divided, job = divided_by(degree, ranks, network(), example)
    job.run()
    said: dict[str, int] = {}
    for one in divided.exchanges:
        if one.kind == "send_recv" and one.when == "before":
            said[one.node] = said.get(one.node, 0) + one.bytes
    assert job.fetched == said and said
    assert {abs(one.shift) for one in divided.exchanges if one.kind == "send_recv"} == {
        (2, 1): {1}, (4, 1): {1}, (1, 4): {1}, (2, 2): {1, 2}, (2, 1, 1): {1}, (1, 2, 2): {1, 2}, (2, 2, 2): {1, 2, 4}
    }[job.factors]  # fmt: skip


OWN, STRIPS = 8, 5
WINDOWS = [
    (kernel, padding, stride)
    for kernel, padding in ((1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (7, 3))
    for stride in (1, 2, 4)
    if kernel >= stride or not padding  # else windows leave out rows
    if (OWN * STRIPS + 2 * padding - kernel) // stride + 1 >= OWN // stride * STRIPS  # else it cannot be divided evenly
]


@pytest.mark.parametrize(("kernel", "padding", "stride"), WINDOWS)
def test_halos_are_the_rows_that_a_convolution_and_its_gradient_read(kernel, padding, stride):
    own, rank, out = OWN, 2, OWN // stride
    window, mine = Window((kernel,), (stride,), (padding,)), range(rank * own, (rank + 1) * own)
    results = range(rank * out, (rank + 1) * out)
    reads = {row for one in results for row in range(one * stride - padding, one * stride - padding + kernel)}
    before, behind = window.halo(0, own, out)
    assert (before, max(0, behind)) == (max(0, mine[0] - min(reads)), max(0, max(reads) - mine[-1]))
    needs = [
        one
        for one in range(out * STRIPS)
        if any(one * stride - padding <= row < one * stride - padding + kernel for row in mine)
    ]
    before, behind = window.gradient_halo(0, own, out)
    assert (before, behind) == (max(0, results[0] - needs[0]), max(0, needs[-1] - results[-1]))


@pytest.mark.parametrize(("degree", "ranks"), [("spatial", 2), ("spatial", 4), ("filter", 4), ("channel", 4)])
def test_a_rank_has_its_part_of_operations_weights_and_activations(degree, ranks):
    source = source_of(Images(), IMAGES)
    one, whole = source.work(4, ParallelDegrees(**{degree: ranks})), source.work(4, ParallelDegrees())

    def flops(split):
        found = source._steps[4, tuple((STRATEGIES[name](), ranks) for name, ranks in split)]
        return sum(o.flops for o in found.operators if o.kind.family == "conv")

    own, all_ = flops(((degree, ranks),)), flops(())
    stem = 3 * 2 * 4 * 32 * 32 * 8 * 3 * 49  # whole on each rank where input channels are divided
    expected = (all_ - (stem * 2 / 3)) / ranks + stem * 2 / 3 if degree == "channel" else all_ / ranks
    assert own == pytest.approx(expected, rel=0.1)
    weights = {g.name: g.bytes for g in one.rank.gradients}
    for gradient in whole.rank.gradients:
        is_divided = degree == "filter" and not gradient.name.startswith("head")
        is_divided |= (
            degree == "channel" and gradient.name.endswith("weight") and gradient.name[:4] not in ("head", "stem")
        )
        assert weights[gradient.name] == gradient.bytes / (ranks if is_divided else 1), gradient.name
    assert one.memory.parameter_bytes == one.memory.gradient_bytes == sum(weights.values())
    assert one.memory.state_bytes == 2 * sum(weights.values())
    if degree == "spatial":
        ratio = one.memory.saved_activation_bytes / whole.memory.saved_activation_bytes
        assert 1 / ranks < ratio < 2.6 / ranks, "copies with the rows of neighbours are held too"
    else:
        assert one.memory.saved_activation_bytes >= whole.memory.saved_activation_bytes / 2


def test_exchanges_stand_between_the_ops_that_need_them():
    source = source_of(Images(), IMAGES)
    for degree, forward, backward in (
        ("filter", "all_gather", "all_reduce"),
        ("channel", "all_reduce", "all_gather"),
        ("spatial", "send_recv", "send_recv"),
    ):  # fmt: skip
        work = source.work(8, ParallelDegrees(**{degree: 2}))
        ops = work.rank.ops
        for one in work.exchanges:
            assert one.degree == degree and all(one.after < place for place in one.before)
            phases = {ops[place].phase for place in one.before}
            assert len(phases) == 1 and one.kind in ((forward,) if phases == {"forward"} else (backward,)) + (
                ("all_gather", "all_reduce") if degree == "spatial" else ()
            )
        many = {"filter": (5, 4), "channel": (4, 4), "spatial": (9, 6)}[degree]
        counts = [sum(ops[one.before[0]].phase == phase for one in work.exchanges) for phase in ("forward", "backward")]
        assert tuple(counts) == many


def test_bytes_of_exchanges_grow_with_the_batch():
    source = source_of(Images(), IMAGES)
    few, many = (source.work(batch, ParallelDegrees(filter=2)).exchanges for batch in (8, 24))
    assert [3 * one.bytes for one in few] == [one.bytes for one in many]


def test_more_ranks_than_a_network_has_parts_are_refused_with_the_layer():
    source = source_of(Images(), IMAGES)
    assert source.limits() == {"pp": 6, "ep": 1, "cp": 1, "tp": 1, "spatial": 16, "filter": 8, "channel": 8}
    for degree, message in (
        ("spatial", "spatial=17: .* has 16 elements in a channel: expected at most 16"),
        ("filter", "filter=17: stem has 8 output channels or groups: expected at most 8"),
        ("channel", "channel=17: first has 8 input channels or groups: expected at most 8"),
    ):
        with pytest.raises(CdmppError, match=message):
            source.work(4, ParallelDegrees(**{degree: 17}))
    with pytest.raises(CdmppError, match="spatial=7: the smallest images .* have 4x4 elements"):
        source.work(4, ParallelDegrees(spatial=7))
    source.prepare([4, 8], [ParallelDegrees(spatial=7), ParallelDegrees(spatial=2)])
    assert source.work(8, ParallelDegrees(spatial=2)).exchanges


@pytest.mark.parametrize(
    ("degree", "ranks", "replicas"), [("spatial", 2, 1), ("spatial", 4, 2), ("filter", 4, 1), ("channel", 2, 2)]
)
def test_a_plan_is_replayed_with_the_exchanges_of_its_operators(degree, ranks, replicas):
    source = source_of(Images(norm=True), IMAGES)
    plan = Plan(
        degrees=ParallelDegrees(dp_replicate=replicas, **{degree: ranks}), model_parallel=(STRATEGIES[degree](),)
    )
    place = {"device": "t4", "link": "pcie4"}
    replayed = replay_plan(source, plan, global_batch=8 * replicas, **place)
    rank = source.work(8, plan.degrees).rank
    alone_s = rank.start_s + sum(op.duration_s + op.gap_s for op in rank.ops)
    assert replayed.iteration_s > alone_s
    whole = source.work(8, ParallelDegrees()).rank
    whole_s = whole.start_s + whole.tail_s + sum(op.duration_s + op.gap_s for op in whole.ops)
    slowed = replay_plan(source, plan, 8, **place, slow={ranks - 1: 2.0})
    for one in (replay_plan(source, plan, 8, **place), slowed):
        assert one.alone_s == pytest.approx(whole_s, rel=0.02)
        assert one.speed_up == pytest.approx(replicas * one.alone_s / one.iteration_s)
    assert replayed == replay_plan(source, plan, 8, **place) and replayed.global_batch == 8 * replicas
    for given in ({}, {"batch": 8, "global_batch": 8 * replicas}):
        with pytest.raises(CdmppError, match="batch and global_batch: give one of them"):
            replay_plan(source, plan, **given, **place)


def test_a_network_without_convolutions_cannot_be_divided():
    source = source_of(nn.Linear(8, 4), torch.randn(4, 8))
    for degree in ("spatial", "filter", "channel"):
        with pytest.raises(CdmppError, match=f"{degree}=2: the network has no convolution"):
            source.work(4, ParallelDegrees(**{degree: 2}))


class Norms(nn.Module):
    """Its first operator reads halos, and ranks of DDP broadcast the buffers of its batch norm before that."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.Conv2d(16, 16, 3, 1, 1)
        self.head = nn.Linear(16, 8)

    def forward(self, x):
        x = self.second(functional.relu(self.norm(self.first(x))))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


@pytest.mark.parametrize(("ranks", "pairs"), [(2, {1: 1}), (4, {1: 3}), (8, {1: 4, 2: 6})])
def test_halos_go_between_neighbours_of_a_grid_only(ranks, pairs):
    """8 ranks are 4 x 2 blocks: by hand 4 pairs lie next to each other along the last axis, and 6 along the first."""
    source = source_of(Norms(), IMAGES)
    plan = Plan(degrees=ParallelDegrees(spatial=ranks), model_parallel=(STRATEGIES["spatial"](),))
    made = lower(source, plan, topology_of(ranks, "t4", link="pcie4"), 8).graph
    halos = Counter(one.peers for one in made.exchanges if one.kind == "send_recv")
    assert Counter(b - a for a, b in halos) == {**pairs, **{-shift: count for shift, count in pairs.items()}}
    if ranks == 8:
        assert {(a, b) for a, b in halos if b - a == 1} == {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert set(halos.values()) == {3}, "two in the forward pass, one of gradients"
    assert replay_plan(source, plan, 8, device="t4", link="pcie4").iteration_s > 0, "nobody waits in a circle"
