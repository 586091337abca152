"""Groups of ranks: by their shape in the nodes, all equal groups at the same time, one size or many."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.collectives import cluster
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.fitted_nodes import fitted_nodes
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.probed import probed
from cdmpp.collectives.topology import Topology, fitted, on_cluster, on_link, topology_of
from cdmpp.errors import CdmppError

MIB = 2**20
KINDS = st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"])
SIZES = st.integers(1, 2**33)


@cache
def boxes(nodes: int = 4, adapters: int = 4, backend: str = "nccl") -> Topology:
    """Nodes of eight cards."""
    name = "dgx-h100" if backend == "nccl" else "cpus-ethernet"
    box = replace(cluster.get(name), nodes=nodes, devices_per_node=8, adapters_per_node=adapters)
    return on_cluster(box, 8 * nodes, backend)


@given(KINDS, SIZES, st.sampled_from(["nccl", "gloo"]))
def test_all_ranks_are_the_whole_and_ranks_of_one_node_a_topology_of_one_node(kind, size, backend):
    job, node = boxes(backend=backend), boxes(1, backend=backend)
    one, eight = (Collective(kind, size, ranks, backend) for ranks in (32, 8))
    assert job.cost(one, range(32)) == job.whole(one)
    for first in (0, 8, 24):
        assert job.cost(eight, range(first, first + 8)) == node.whole(eight)
    link = on_link(cluster.get("dgx-h100").inside, 4)
    four = Collective(kind, size, 4)
    assert boxes().cost(four, (9, 11, 13, 15)) == link.whole(four)


@given(
    KINDS, SIZES, SIZES,
    st.sampled_from([tuple(range(0, 32, 8)), tuple(range(16)), (0, 4, 8, 12), (6, 7, 8), (3,), (1, 2)]),
    st.sampled_from(["nccl", "gloo"]),
)  # fmt: skip
def test_more_bytes_take_longer_and_bounds_hold_the_middle(kind, one, other, members, backend):
    less, more = (
        boxes(backend=backend).cost(Collective(kind, size, len(members), backend), members)
        for size in sorted((one, other))
    )
    assert less.latency_s <= more.latency_s * (1 + 1e-9)
    assert more.low_s <= more.latency_s <= more.high_s


@settings(max_examples=30)
@given(
    KINDS, st.lists(SIZES, min_size=1, max_size=20),
    st.sampled_from([tuple(range(32)), tuple(range(0, 32, 8)), (0, 4, 8, 12), (6, 7, 8), (5, 9), (2, 3)]),
)  # fmt: skip
def test_many_sizes_at_once_are_one_after_the_other(kind, sizes, members):
    job = boxes()
    found = job.latency_s(kind, np.array([sizes, sizes]), members)
    told = [job.cost(Collective(kind, size, len(members)), members).latency_s for size in sizes]
    assert found.shape == (2, len(sizes))
    assert found[0] == pytest.approx(told, rel=2e-3)
    assert list(job.latency_s(kind, np.array([0, 0.0]), members)) == [0.0, 0.0]


def test_groups_that_lie_alike_share_the_adapters():
    """Rank i of each node with the ranks i of the others: eight groups on eight adapters, or on two."""
    asked = Collective("all_reduce", 256 * MIB, 4)
    own, shared = (boxes(adapters=count).cost(asked, range(0, 32, 8)).latency_s for count in (8, 2))
    assert 3.5 < shared / own < 4.0
    plain = boxes(adapters=8).cost(asked, range(3, 32, 8))
    assert plain == boxes(adapters=8).cost(asked, range(0, 32, 8))  # any of them
    # Two ranks of each node first act inside: half of the bytes then cross, and as many flows share the adapters.
    inside = boxes().cost(Collective("all_reduce", 256 * MIB, 8), [rank for rank in range(32) if rank % 8 < 2])
    assert inside.latency_s < boxes().cost(asked, range(0, 32, 8)).latency_s


def test_gloo_leaves_a_node_once_a_ring():
    """A ring of all ranks has an adapter to itself, rings of two ranks of each node share it by four."""
    job = boxes(nodes=2, adapters=1, backend="gloo")
    long = 1024 * MIB
    four = Collective("all_gather", long, 4, "gloo")
    wide = Collective("all_gather", long, 16, "gloo")
    alone = four.traffic_bytes / wide.traffic_bytes * job.whole(wide).latency_s
    assert job.cost(four, (0, 1, 8, 9)).latency_s == pytest.approx(4 * alone, rel=0.01)


def test_messages_cross_an_adapter_next_to_those_that_go_as_far():
    one, inside = Collective("send_recv", 64 * MIB, 2), boxes().cost(Collective("send_recv", 64 * MIB, 2), (0, 1))
    far, back = boxes().cost(one, (0, 8)), boxes().cost(one, (8, 0))
    assert far == back and far.latency_s > inside.latency_s
    own = boxes(adapters=8).cost(one, (0, 8)).latency_s
    assert far.latency_s == pytest.approx(2 * own, rel=0.02)  # two ranks an adapter
    # From the last two ranks of a node to the next one: two on one of four adapters; the others stay inside.
    assert boxes().shape((6, 8)).messages == 2 and boxes().shape((7, 8)).messages == 1
    assert boxes().shape((2, 4)).messages == 1
    assert boxes().latency_s("send_recv", np.array([64 * MIB]), (0, 8)) == pytest.approx([far.latency_s], rel=2e-3)


def test_groups_that_share_what_is_inside_a_node_are_flagged():
    asked = Collective("all_reduce", 64 * MIB, 4)
    for link, flag in (("pcie4", "groups of one node share its bus"), ("nvlink2", "only the links between these")):
        job = on_link(link, 8)
        part, whole = job.cost(asked, range(4)).flags, job.whole(replace(asked, ranks=8)).flags
        assert any(flag in one for one in part) and not any(flag in one for one in whole)
    assert on_link("nvlink3", 8).cost(asked, range(4)).flags == ()  # a switch


def test_uneven_groups_are_one_ring_and_say_so():
    asked = Collective("all_reduce", 64 * MIB, 3)
    found = boxes().cost(asked, (6, 7, 8))
    assert found.latency_s > boxes().cost(asked, (5, 6, 7)).latency_s
    assert "nodes hold unequal numbers of a group's ranks: it is priced as one ring" in found.flags


def test_two_fitted_numbers_and_timed_sizes_know_groups():
    wire = AlphaBeta(1e-4, 1e-9)
    assert fitted(wire, 8).cost(Collective("all_reduce", 8 * MIB, 2, "gloo"), (3, 5)).latency_s == pytest.approx(
        2 * wire.seconds(4 * MIB)
    )
    rows = [(size, 6e-4 + 2 * 3 / 4 * size * 1e-9) for size in (2, MIB, 16 * MIB)]
    timed = probed({"all_reduce": rows}, 4, 1e9)
    two = timed.cost(Collective("all_reduce", 8 * MIB, 2, "gloo"), (1, 2))
    assert two.latency_s == pytest.approx(2e-4 + 8 * MIB * 1e-9, rel=1e-3)
    assert two.flags == ("all_reduce of 2 ranks was not timed: from 4, as a ring grows",)
    assert timed.whole(Collective("all_reduce", MIB, 4, "gloo")).flags == ()


def test_groups_that_were_timed_take_what_they_took():
    pairs = {"all_reduce": [(MIB, 3e-3), (16 * MIB, 48e-3)]}
    timed = probed({"all_reduce": [(MIB, 1e-3), (16 * MIB, 16e-3)]}, 4, 1e9, groups={2: pairs})
    two, four = (timed.cost(Collective("all_reduce", MIB, n, "gloo"), range(n)) for n in (2, 4))
    assert (two.latency_s, two.flags) == (pytest.approx(3e-3), ()) and four.latency_s == pytest.approx(1e-3)
    three = timed.cost(Collective("all_reduce", MIB, 3, "gloo"), (0, 1, 2))
    assert three.flags and three.latency_s < four.latency_s
    with pytest.raises(CdmppError, match="no all_gather was timed here, only all_reduce"):
        timed.cost(Collective("all_gather", MIB, 2, "gloo"), (0, 1))


def test_groups_that_cannot_be_are_refused():
    job = boxes()
    with pytest.raises(CdmppError, match="a group of ranks 30, 32: expected one or more of 0 to 31, each once"):
        job.cost(Collective("all_reduce", 8, 2), (30, 32))
    with pytest.raises(CdmppError, match="a group of ranks 3, 3: expected one or more"):
        job.cost(Collective("all_reduce", 8, 2), (3, 3))
    with pytest.raises(CdmppError, match="a group of ranks none"):
        job.cost(Collective("all_reduce", 8, 2), ())
    with pytest.raises(CdmppError, match="all_reduce of 3 ranks among 2: give as many"):
        job.cost(Collective("all_reduce", 8, 3), (0, 1))


def test_bounds_are_topologies():
    job, asked = boxes(), Collective("all_reduce", 64 * MIB, 4)
    found = job.cost(asked, range(0, 32, 8))
    for bound in ("low_s", "high_s"):
        at_bound = job.bounded(bound)
        assert at_bound.cost(asked, range(0, 32, 8)).latency_s == pytest.approx(getattr(found, bound))
        assert at_bound.latency_s("all_reduce", np.array([64 * MIB]), range(0, 32, 8)) == pytest.approx(
            [getattr(found, bound)], rel=2e-3
        )
    with pytest.raises(CdmppError, match="bound"):
        job.bounded("middle_s")


def test_a_cluster_grows_openly():
    """Twice the nodes of a ring that crosses nodes: as the ring grows, and said; without being asked it is refused."""
    few, many = (topology_of(ranks, "v100", "dgx1-v100", can_grow=True) for ranks in (16, 4096))
    assert few.warnings == () and (many.nodes, many.ranks) == (512, 4096)
    assert many.warnings == (
        "cluster dgx1-v100 is described with 2 nodes, and 512 of this kind are taken for 4,096 ranks: switches "
        "between them carry as much for all",
    )
    asked = Collective("all_reduce", 256 * MIB, 16)
    assert many.cost(asked, range(16)) == few.whole(asked)
    with pytest.raises(CdmppError, match="32 ranks do not fit on cluster dgx1-v100: it has 16 devices"):
        topology_of(32, "v100", "dgx1-v100")
    with pytest.raises(CdmppError, match="fill 3 nodes of 8 devices unevenly"):
        topology_of(20, "v100", "dgx1-v100", can_grow=True)
    with pytest.raises(CdmppError, match="it is one node of 8 devices, and field between names no link to others"):
        topology_of(16, "mi300x", "mi300x-platform", can_grow=True)


def test_two_wires_price_groups_inside_nodes_and_between_them():
    inside, between = AlphaBeta(1e-6, 1e-11), AlphaBeta(1e-5, 1e-10)
    links = fitted_nodes(inside, between, 8, 2)
    asked = Collective("all_reduce", 4000, 2)
    assert links.cost(asked, (0, 1)).latency_s == pytest.approx(2 * (1e-6 + 2000 * 1e-11))
    # each of four GPUs of a node has such a group, and one adapter carries them all
    assert links.cost(asked, (0, 4)).latency_s == pytest.approx(2 * (1e-5 + 4 * 2000 * 1e-10))
    assert fitted_nodes(inside, between, 8, 2, adapters=4).cost(asked, (0, 4)).latency_s == pytest.approx(
        2 * (1e-5 + 2000 * 1e-10)
    )
    assert fitted_nodes(inside, between, 8, 1).cost(asked, (0, 4)).latency_s == pytest.approx(2 * (1e-6 + 2000 * 1e-11))


def test_one_message_counts_for_those_that_are_left_out():
    """Eight cards and four adapters a node: two messages on each, of which none, one or both are there."""
    job, far = boxes(), {(0, 8), (1, 9), (2, 10)}
    assert [job.copies((0, 8), among) for among in (set(), {(0, 8)}, far)] == [2, 2, 1]
    assert job.copies((2, 10), far) == 2 and job.copies((0, 1), {(0, 1)}) == 1
