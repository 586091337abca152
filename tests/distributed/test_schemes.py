"""What each scheme exchanges and when, as PyTorch does it; links carry as many bytes as was said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import CdmppError
from cdmpp.steps.data_parallel import DataParallel
from cdmpp.steps.exchange import START
from cdmpp.steps.parameter_server import ParameterServer
from cdmpp.steps.rank_tasks import step_tasks
from cdmpp.steps.replay import replay
from cdmpp.steps.scheme import SCHEMES, scheme_of
from cdmpp.steps.sharded import Sharded
from cdmpp.steps.work import Gradient, Unit
from tests.distributed.toy_work import MIB, WIRE, rank_work, ranks_of, wires


def test_buckets_are_filled_as_gradients_become_ready():
    work = rank_work(sizes=[20 * MIB, 20 * MIB, 20 * MIB, MIB, MIB // 2])
    names = [[one.name for one in bucket] for bucket in DataParallel().buckets(work)]
    # the last layer is ready first; 1 MiB is not reached before two of them, then 25 MiB not before two more
    assert names == [["layer 4", "layer 3"], ["layer 2", "layer 1"], ["layer 0"]]
    assert [len(bucket) for bucket in DataParallel(MIB).buckets(work)] == [2, 1, 1, 1]
    assert [len(bucket) for bucket in DataParallel(100 * MIB).buckets(work)] == [5]


def test_gradients_of_one_operation_go_in_reverse_order():
    work = replace(rank_work(), gradients=(Gradient("weight", 8, 5), Gradient("bias", 4, 5), Gradient("last", 4, 4)))
    assert [one.name for one in DataParallel().buckets(work)[0]] == ["last", "bias", "weight"]


def test_a_bucket_leaves_after_the_one_before():
    """Rank 1 has its gradients in another order than rank 0, whose order counts."""
    works = ranks_of(2, sizes=[2 * MIB] * 2)
    first, second = works[1].gradients
    works[1] = replace(works[1], gradients=(replace(first, ready_after=2), replace(second, ready_after=3)))
    made = DataParallel().exchanges(works)
    assert [(one.bytes, one.after) for one in made] == [(2 * MIB, (2, 3)), (2 * MIB, (3, 2))]
    spans = replay(works, DataParallel(), wires(2)).spans
    buckets = [(span.name, span.start_s) for span in spans if span.rank == 0 and span.kind == "all_reduce"]
    assert [name for name, _ in buckets] == ["bucket 0", "bucket 1"]


def test_sharded_gathers_one_ahead_and_keeps_the_root():
    work = rank_work(sizes=[MIB, 2 * MIB, 3 * MIB])  # forward 0 1 2, backward 3 4 5, update 6
    units = (Unit("root", 8, (0, 2), (3, 5), is_kept=True), *work.units[1:])
    made = Sharded().exchanges([replace(work, units=units)])
    assert [(one.name, one.after, one.before) for one in made] == [
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
    made = Sharded(overlap=False).exchanges([rank_work(sizes=[MIB, MIB])])
    assert [(one.after, one.before) for one in made] == [
        ((START,), (0,)), ((0,), (1,)), ((1,), (2,)), ((2,), (3,)), ((2,), (3,)), ((3,), (4,)),
    ]  # fmt: skip


def test_a_rank_updates_its_own_part_alone():
    sharded = replay(ranks_of(4, update_s=4e-3), Sharded(), wires(4))
    assert sharded.shares[0].phase_s["update"] == pytest.approx(1e-3)
    traced = [replace(work, update_shards=4) for work in ranks_of(4, update_s=1e-3)]
    assert replay(traced, Sharded(), wires(4)).iteration_s == pytest.approx(sharded.iteration_s)
    assert replay(traced, DataParallel(), wires(4)).shares[0].phase_s["update"] == pytest.approx(4e-3)


def test_parts_go_from_server_to_server():
    made = ParameterServer(servers=2, part_bytes=MIB).exchanges(ranks_of(3, sizes=[5 * MIB // 2, MIB]))
    assert [(one.name, one.server) for one in made] == [
        ("layer 1 part 0", 0), ("layer 0 part 0", 1), ("layer 0 part 1", 0), ("layer 0 part 2", 1),
    ]  # fmt: skip
    assert sum(one.bytes for one in made) == 7 * MIB // 2


def test_pushes_to_one_server_share_its_way_in():
    """By hand: three pushes at a third of the rate each, then three pulls on the way out."""
    found = replay(ranks_of(4, sizes=[3 * MIB]), ParameterServer(servers=1), wires(4))
    each_s = WIRE.alpha_s + 3 * 3 * MIB * WIRE.beta_s
    assert found.iteration_s == pytest.approx(4e-3 + 2 * each_s) == pytest.approx(found.no_overlap_s)


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("scheme", [DataParallel(), Sharded(), ParameterServer(part_bytes=MIB)])
def test_links_carry_what_was_said(scheme, ranks):
    works, fabric = ranks_of(ranks, sizes=[ranks * MIB] * ranks), wires(ranks, alpha_s=0.0)
    carried = dict.fromkeys(fabric.rates, 0.0)
    for task in step_tasks(works, scheme.exchanges(works), fabric, 1, "chunks"):
        for link in task.flow.links if task.flow else ():
            carried[link] += task.flow.bytes
    sent = replay(works, scheme, fabric, "chunks").sent_bytes
    # a message of 1 byte takes the time of that byte, which counts as latency here
    assert carried == pytest.approx(dict.fromkeys(carried, sent), rel=1e-4)


def test_what_does_not_fit_is_said():
    two = ranks_of(2)
    for works, told in (
        ([], "no rank has any work"),
        (two[::-1], "the work of rank 1 stands in place 0"),
        ([two[0], rank_work(1, [MIB] * 4)], r"gradients of rank 1 are not those of rank 0: \('layer 0', 1048576\)"),
        ([two[0], rank_work(1, [4 * MIB] * 3)], "gradients of rank 1 are not those of rank 0: 3 against 4"),
    ):
        with pytest.raises(CdmppError, match=told):
            DataParallel().exchanges(works)
    with pytest.raises(CdmppError, match="needs units of parameters"):
        Sharded().exchanges([replace(two[0], units=())])
    with pytest.raises(CdmppError, match="3 servers on 2 ranks: expected 1 to 2"):
        ParameterServer(servers=3).exchanges(two)
    for wrong in (lambda: DataParallel(0), lambda: ParameterServer(part_bytes=0)):
        with pytest.raises(CdmppError, match="expected"):
            wrong()


def test_schemes_by_name():
    assert [scheme_of(name, "nccl").name for name in SCHEMES] == list(SCHEMES)
    assert scheme_of("ddp", "nccl", bucket_mb=0.5) == DataParallel(MIB // 2)
    assert scheme_of("fsdp", "gloo") == Sharded(overlap=False)
    with pytest.raises(CdmppError, match=r"unknown scheme 'zero'; .*ddp"):
        scheme_of("zero", "nccl")
    with pytest.raises(CdmppError, match="servers 2 goes with scheme ps, given ddp"):
        scheme_of("ddp", "nccl", servers=2)
