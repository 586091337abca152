"""Stages of steps that are read from models: what goes where, and what crosses the cuts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import CdmppError
from cdmpp.plans.cut import stages_of
from cdmpp.plans.cut_places import CutPlaces
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import lower, lower_work
from cdmpp.plans.plan_file import plan_from_dict
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import Op, RankGraph
from tests.plans.sources.toy_source import source_of
from tests.plans.toy_pipeline import links, plan

WIDTH, BATCH, WORDS = 8, 4, 50


class Residual(nn.Module):
    """Blocks with skips, between a first and a last layer; two norms with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(WIDTH, 2 * WIDTH), nn.BatchNorm1d(2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
            )
            for _ in range(4)
        )

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


class Long(Residual):
    """What the first layer makes is read by the last one too."""

    def forward(self, x):
        first = x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x * first)


class Tied(nn.Module):
    """The last layer has the table of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.last = nn.Linear(WIDTH, WORDS, bias=False)
        self.last.weight = self.table.weight

    def forward(self, x):
        x = self.table(x)
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.last(x).mean(1)


def work_of(network, *example):
    return source_of(network, *(example or (torch.randn(BATCH, WIDTH),))).work(BATCH, ParallelDegrees())


def cut(rank, *names):
    on = CutPlaces(rank)
    return stages_of(rank, [on.named(name) for name in names])


def test_each_op_is_on_one_stage_and_updates_on_all_in_proportion():
    rank = work_of(Residual()).rank
    stages = cut(rank, "blocks.1", "blocks.3")
    updates = [place for place, op in enumerate(rank.ops) if op.phase == "update"]
    assert sorted(place for stage in stages for place in stage.places) == sorted(
        [*(p for p in range(len(rank.ops)) if p not in updates), *3 * updates]
    )
    assert sum(stage.share for stage in stages) == pytest.approx(1)
    for stage in stages:
        stage.rank.check_gradients()
        for place, old in enumerate(stage.places):
            factor = stage.share if old in updates else 1
            assert stage.rank.ops[place].duration_s == pytest.approx(factor * rank.ops[old].duration_s)
    names = [[one.name for one in stage.rank.gradients] for stage in stages]
    assert [name for own in names for name in own if "last" not in name] == [
        one.name for one in rank.gradients if "last" not in one.name
    ]
    assert {name.rpartition(".")[0] for name in names[1]} == {
        f"blocks.{i}.{part}" for i in (1, 2) for part in (0, 1, 3)
    }
    assert [name for name in names[2] if "last" in name] == ["last.weight", "last.bias"]


def test_backward_ops_are_with_their_forward_ops_and_sums_of_gradients_with_the_later_stage():
    rank = work_of(Residual()).rank
    first, second = cut(rank, "blocks.2")
    begin = next(i for i, op in enumerate(rank.ops) if i in second.places)
    for place in (p for p in second.places if rank.ops[p].phase == "backward"):
        is_sum = place in CutPlaces(rank).sums
        assert is_sum or rank.ops[place].forward >= begin
    moved = [p for p in second.places if rank.ops[p].phase == "backward" and rank.ops[p].forward < begin]
    assert len(moved) == 1, "the gradients of the skip and of the block are summed before one is sent"
    assert not set(moved) & set(first.places)


def test_one_tensor_crosses_between_blocks_with_its_gradient():
    """By hand: a row of 8 floats an example."""
    first, second = cut(work_of(Residual()).rank, "blocks.2")
    size = BATCH * WIDTH * 4
    assert (first.sent_bytes, second.returned_bytes) == ((size,), (size,))
    assert (first.returned_bytes, second.sent_bytes) == ((), ())


def test_what_a_later_stage_reads_is_passed_on_by_those_between():
    first, second, third = cut(work_of(Long()).rank, "blocks.1", "blocks.3")
    size = BATCH * WIDTH * 4
    assert first.sent_bytes == second.sent_bytes == (size, size)
    assert second.returned_bytes == third.returned_bytes == (size, size)


def test_what_a_kernel_keeps_for_itself_is_not_sent():
    """A norm writes its statistics too, 2 x 16 floats; only its result crosses."""
    rank = work_of(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3))).rank
    first, _ = cut(rank, "2")
    assert first.sent_bytes == (BATCH * WIDTH * 4,)


def test_a_tied_table_is_on_both_stages_and_its_gradients_are_reduced_once_a_step():
    work = work_of(Tied(), torch.randint(0, WORDS, (BATCH, 6)))
    assert [one.name for one in work.rank.gradients if len(one.readers) > 1] == ["table.weight"]
    first, second = cut(work.rank, "blocks.2")
    table = WORDS * WIDTH * 4
    for stage in (first, second):
        assert [one.bytes for one in stage.rank.gradients if one.name == "table.weight"] == [table]
        assert stage.tied == ("table.weight",)
    assert first.share + second.share == pytest.approx(1 + table / sum(one.bytes for one in work.rank.gradients))
    made = lower_work(work, plan(2, 4, cuts=("blocks.2",)), links(2)).graph
    (tied,) = [one for one in made.exchanges if one.kind == "all_reduce"]
    assert (tied.bytes, tied.members) == (table, (0, 1))
    for rank, place in tied.after.items():
        op = made.ranks[rank].ops[place]
        assert op.phase == "backward"
        assert op.name.endswith("micro-batch 3")
    inside = cut(work.rank, "blocks.1", "blocks.2")
    assert [stage.tied for stage in inside] == [("table.weight",), (), ("table.weight",)]


def test_modules_and_buffers_go_with_their_stage():
    rank = work_of(Residual()).rank
    stages = cut(rank, "blocks.1", "blocks.3")
    assert [[one.name for one in stage.rank.modules] for stage in stages] == [
        ["root", "blocks.0"], ["blocks.1", "blocks.2"], ["blocks.3", "root"],
    ]  # fmt: skip
    roots = [one for stage in stages for one in stage.rank.modules if one.is_kept]
    assert sum(one.bytes for one in roots) == sum(one.bytes for one in rank.modules if one.is_kept)
    assert [one.rows for one in roots] == [((WIDTH, WIDTH * 4, 0), (WIDTH, 4, 0)), ((3, WIDTH * 4, 0), (3, 4, 0))]
    assert [len(stage.rank.buffers) for stage in stages] == [3, 6, 3]


def test_balanced_cuts_lie_between_blocks():
    made = lower_work(work_of(Residual()), plan(2, 4), links(2))
    assert [len(stage.rank.modules) for stage in made.stages] == [3, 3]
    assert "blocks.2" in [one.name for one in made.stages[1].rank.modules]


class Images(nn.Module):
    """Convolutions of several channels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(8 if i else 4, 8, 3, padding=1) for i in range(4))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize(
    ("kind", "degrees"),
    [("spatial", {"spatial": 4, "dp_replicate": 8}), ("spatial", {"spatial": 2, "pp": 2, "dp_replicate": 8}),
     ("filter", {"filter": 2, "pp": 2, "dp_replicate": 8}), ("channel", {"channel": 2, "dp_shard": 16})],
)  # fmt: skip
def test_divided_operators_exchange_in_every_micro_batch_and_fold(kind, degrees):
    source = source_of(Images(), torch.randn(2, 4, 16, 16))
    many = 3 if "pp" in degrees else 1
    pipeline = [{"name": "pipeline", "micro_batches": many}] if many > 1 else []
    strategy = "fsdp" if "dp_shard" in degrees else "ddp"
    under = plan_from_dict({"strategy": strategy, "degrees": degrees, "model_parallel": [kind, *pipeline]})
    topology = links(32, AlphaBeta(1e-6, 1e-9))
    batch = 2 * many * degrees.get("dp_replicate", 1) * degrees.get("dp_shard", 1)
    whole, folded = (lower(source, under, topology, batch, fold) for fold in (False, True))
    assert len(whole.graph.ranks) == 32 > len(folded.graph.ranks)
    merged = lower(source, under, topology, batch, fold=True, merge=True)
    assert len(merged.graph.ranks[0].ops) < len(folded.graph.ranks[0].ops)
    seconds = [replay(one.graph, topology).step_s for one in (whole, folded, merged)]
    assert seconds == pytest.approx(seconds[:1] * 3, rel=1e-9)
    assert len(merged.graph.exchanges) == len(folded.graph.exchanges)
    work = source.work(2, under.degrees)
    if kind != "spatial":
        groups = 32 // degrees[kind]
        own = [one for one in whole.graph.exchanges if len(one.members) == degrees[kind] and one.kind != "send_recv"]
        assert len(own) == many * len(work.exchanges) * groups // degrees.get("pp", 1)
    else:
        halos = [one for one in whole.graph.exchanges if one.kind == "send_recv" and "to stage" not in one.name]
        messages = sum(one.kind == "send_recv" for one in work.exchanges) * (degrees["spatial"] - 1)
        assert len(halos) == many * messages * 32 // degrees["spatial"] // degrees.get("pp", 1)


def test_an_op_that_names_no_forward_op_is_found_by_what_it_reads():
    """As in a joint graph that TVM made: gradients of parameters and saved results say the stage."""
    rank = work_of(Residual()).rank
    blind = replace(rank, ops=tuple(replace(op, forward=None) for op in rank.ops))
    for own, other in zip(cut(rank, "blocks.2"), cut(blind, "blocks.2"), strict=True):
        differ = set(own.places) ^ set(other.places)
        assert len(differ) <= 2
        assert [one.name for one in own.rank.gradients] == [one.name for one in other.rank.gradients]
        assert own.sent_bytes == other.sent_bytes


def test_a_cut_is_a_module_and_no_parameter_and_the_nearest_are_named():
    on = CutPlaces(work_of(Residual()).rank)
    parameter = next(one.name for one in on.rank.gradients if one.name.startswith("blocks.2."))
    with pytest.raises(CdmppError, match=r"no module .*; later stages can begin with blocks\.2\."):
        on.named(parameter)
    assert {"root", on.rank.ops[on.forward[0]].name}.isdisjoint(on.names)
    assert all(place in on.forward[1:] for place in on.names.values())


def test_a_model_inside_a_module_of_this_package_keeps_its_names():
    rank = work_of(Residual()).rank
    wrapped = tuple(replace(one, name=f"inner.{one.name}") for one in rank.gradients)
    assert CutPlaces(replace(rank, gradients=wrapped)).named("blocks.2") == CutPlaces(rank).named("blocks.2")


def test_a_traced_step_says_too_little():
    ops = (Op("f", "forward", 1.0), Op("b", "backward", 1.0))
    with pytest.raises(CdmppError, match="nothing says which op of the backward pass belongs"):
        CutPlaces(RankGraph(0, ops))


def _tied_steps(strategy, degrees):
    source = source_of(Tied(), torch.randint(0, WORDS, (BATCH, 6)))
    pipeline = {"name": "pipeline", "micro_batches": 1, "cuts": ["blocks.2"]}
    under = plan_from_dict({"strategy": strategy, "degrees": {"pp": 2, **degrees}, "model_parallel": [pipeline]})
    topology = links(under.ranks, AlphaBeta(1e-5, 1e-8))
    made = lower(source, under, topology, BATCH * under.ranks // 2, fold=False).graph
    return made, replay(made, topology)


@pytest.mark.parametrize(
    ("strategy", "degrees", "parts"),
    [("ddp", {"dp_replicate": 2}, 1), ("zero", {"dp_replicate": 2}, 1), ("fsdp", {"dp_shard": 2}, 2),
     ("hsdp", {"dp_shard": 2, "dp_replicate": 2}, 2)],
)  # fmt: skip
def test_tied_gradients_are_summed_over_stages_after_replicas_and_only_the_part_that_a_rank_has(
    strategy, degrees, parts
):
    made, replayed = _tied_steps(strategy, degrees)
    tied = [one for one in made.exchanges if one.name.endswith(", tied")]
    assert [one.bytes for one in tied] == [WORDS * WIDTH * 4 // parts] * (len(made.ranks) // 2)
    spans = [one for one in replayed.timeline.spans.values() if one.task.key.step == 0]
    spans = {one.task.key.place: one for one in spans if one.task.key.kind == "exchange"}
    for at, one in enumerate(made.exchanges):
        if one not in tied:
            continue
        own = [
            spans[place].end_s
            for place, other in enumerate(made.exchanges)
            if other.kind in ("all_reduce", "reduce_scatter")
            and other not in tied
            and set(other.after) & set(one.after)
        ]
        assert own
        assert spans[at].start_s >= max(own) - 1e-12
