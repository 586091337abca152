"""Collectives and their closed forms: equalities that hold for all sizes and ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdmpp.collectives.algorithms import (
    best,
    hierarchical,
    pairwise,
    parameter_server,
    parts,
    ring,
    server_traffic_bytes,
    tree,
)
from cdmpp.collectives.collective import KINDS, Collective
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import CdmppError

sizes, counts = st.integers(1, 2**34), st.integers(2, 64)
links = st.builds(AlphaBeta, st.floats(0, 1e-3), st.floats(1e-13, 1e-7))
GROUPS = [kind for kind in KINDS if kind != "send_recv"]


@given(sizes, counts, links)
def test_ring_all_reduce_is_scatter_and_gather(size, ranks, link):
    whole, scatter, gather = (
        ring(Collective(kind, size, ranks), link) for kind in ("all_reduce", "reduce_scatter", "all_gather")
    )
    assert whole == pytest.approx(scatter + gather)
    assert whole == pytest.approx(2 * (ranks - 1) * (link.alpha_s + size / ranks * link.beta_s))


@given(sizes, counts)
def test_as_many_servers_as_ranks_move_as_much_as_a_ring(size, ranks):
    assert server_traffic_bytes(size, ranks, ranks) == pytest.approx(
        Collective("all_reduce", size, ranks).traffic_bytes
    )
    assert server_traffic_bytes(size, ranks, 1) == pytest.approx(2 * (ranks - 1) * size)


@given(sizes, counts, st.integers(1, 64), links)
def test_more_servers_are_never_slower(size, ranks, servers, link):
    asked, few = Collective("all_reduce", size, ranks), min(servers, ranks)
    assert parameter_server(asked, ranks, link) <= parameter_server(asked, few, link) * (1 + 1e-9)


@given(st.sampled_from(GROUPS), sizes, counts, links, links)
def test_one_node_is_flat(kind, size, ranks, inside, between):
    asked = Collective(kind, size, ranks)
    assert hierarchical(asked, 1, inside, between) == pytest.approx(ring(asked, inside))
    assert hierarchical(asked, ranks, inside, between) == pytest.approx(ring(asked, between))


@given(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]), st.integers(1, 2**20), links)
def test_equal_links_give_a_hierarchy_the_traffic_of_a_ring(kind, size, link):
    asked, free = Collective(kind, 64 * size, 16), replace(link, alpha_s=0.0)
    assert hierarchical(asked, 4, free, free) == pytest.approx(ring(asked, free))


@given(st.sampled_from(list(KINDS)), sizes, sizes, links)
def test_more_bytes_never_take_less(kind, one, other, link):
    ranks = 2 if kind == "send_recv" else 8
    less, more = (Collective(kind, size, ranks) for size in sorted((one, other)))
    assert best(less, link) <= best(more, link)
    assert hierarchical(less, 2, link, link) <= hierarchical(more, 2, link, link)


@given(sizes, counts)
def test_gloo_scatters_by_an_all_reduce(size, ranks):
    asked = Collective("reduce_scatter", size, ranks, "gloo")
    assert asked.runs_as == Collective("all_reduce", size, ranks, "gloo")
    assert asked.traffic_bytes == pytest.approx(2 * Collective("reduce_scatter", size, ranks).traffic_bytes)
    assert [part.kind for part, _ in parts(asked, 1)] == ["all_reduce"]


def test_short_messages_take_the_tree_and_long_ones_the_ring():
    link = AlphaBeta(1e-6, 1e-11)
    short, long = Collective("all_reduce", 8, 8), Collective("all_reduce", 2**30, 8)
    assert best(short, link) == tree(short, link) < ring(short, link)
    assert best(long, link) == ring(long, link) < tree(long, link)


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        (("allreduce", 8, 2), "unknown kind .* nearest: all_reduce"),
        (("all_reduce", 0, 2), "bytes is 0"),
        (("all_reduce", 8.0, 2), "bytes is 8.0"),
        (("all_reduce", 8, True), "ranks is True"),
        (("all_reduce", 8, 2, "ncl"), "unknown backend .* nearest: nccl"),
        (("send_recv", 8, 3), "send_recv has two ranks"),
        (("all_gather", 8, 2, "custom"), "custom has an all_reduce alone"),
    ],
)
def test_wrong_collectives_are_refused(given_, told):
    with pytest.raises(CdmppError, match=told):
        Collective(*given_)


def test_what_has_no_such_algorithm_is_refused():
    link, asked = AlphaBeta(1e-6, 1e-11), Collective("all_to_all", 64, 6)
    for call in (
        lambda: tree(asked, link),
        lambda: pairwise(Collective("all_reduce", 64, 6), link),
        lambda: parameter_server(asked, 2, link),
        lambda: server_traffic_bytes(64, 2, 3),
        lambda: hierarchical(asked, 4, link, link),
    ):
        with pytest.raises(CdmppError):
            call()
