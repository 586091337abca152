"""Replay of several ranks: equal to closed forms where nothing overlaps, and what must hold whatever the step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.collectives.algorithms import ring
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.topology import topology_of
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.parameter_server import ParameterServer
from cdmpp.steps import bounds
from cdmpp.steps.strategy_replay import replay_strategy
from tests.steps.toy_graph import MIB, WIRE, graph_of, rank_graph, ranks_of, wires

SCHEMES = [DDP(), DDP((8 * MIB,)), FSDP(), FSDP(overlap=False), ParameterServer(part_bytes=MIB)]
sizes = st.lists(st.integers(1, 8 * MIB), min_size=1, max_size=6)
schemes, counts = st.sampled_from(SCHEMES), st.integers(2, 6)
details = st.sampled_from(["collective", "ring step"])
few = settings(deadline=None, max_examples=40)


@given(schemes, sizes, details)
@few
def test_one_rank_is_the_step_of_one_device(scheme, sizes, detail):
    found = replay_strategy(ranks_of(1, sizes=sizes), scheme, wires(1), detail)
    assert found.iteration_s == pytest.approx(3e-3 * len(sizes) + 1e-3)
    assert found.exchanges == found.sent_bytes == found.exposed_s == 0
    assert found.speed_up == pytest.approx(1.0)


@given(sizes, counts, st.floats(1e-6, 1e-3), st.floats(1e-11, 1e-8))
@few
def test_data_parallel_by_closed_form_is_replay_without_overlap(sizes, ranks, alpha_s, beta_s):
    """One bucket: compute + 2 (p - 1) (alpha + bytes / p beta)."""
    graph, topology = ranks_of(ranks, sizes=sizes), wires(ranks, alpha_s, beta_s)
    found = replay_strategy(graph, DDP((64 * MIB,), overlap=False), topology)
    by_hand = 3e-3 * len(sizes) + 1e-3 + 2 * (ranks - 1) * (alpha_s + sum(sizes) / ranks * beta_s)
    assert found.iteration_s == pytest.approx(by_hand) == pytest.approx(found.no_overlap_s)


@given(sizes, counts, st.sampled_from([DDP(overlap=False), FSDP(overlap=False)]))
@few
def test_collectives_in_the_open_add_up(sizes, ranks, scheme):
    found = replay_strategy(ranks_of(ranks, sizes=sizes), scheme, wires(ranks))
    assert found.iteration_s == pytest.approx(found.no_overlap_s)
    graph = scheme.apply(ranks_of(ranks, sizes=sizes))
    assert (found.exposed_s, found.exposed_s) == pytest.approx(bounds.exchanged_s(graph, wires(ranks)))


@given(sizes, counts, st.integers(1, 4), st.booleans(), st.sampled_from([0.0, 1e-5, 1e-4, 1e-3]))
@few
def test_without_overlap_exchanges_hide_in_gaps_only(sizes, ranks, prefetch, reshards, gap_s):
    """Modules that are gathered together, further ahead, have fewer gaps to hide in than those that come one by one."""
    scheme = FSDP(reshards, prefetch=prefetch, overlap=False)
    found = replay_strategy(ranks_of(ranks, sizes=sizes, gap_s=gap_s), scheme, wires(ranks))
    for share in found.shares:
        hidden_s = share.communication_s - share.exposed_s
        assert found.iteration_s + hidden_s == pytest.approx(found.no_overlap_s, rel=1e-9)
        assert share.compute_s + share.communication_s <= found.iteration_s + gap_s * (found.exchanges + 1e-9)
        assert gap_s or hidden_s == pytest.approx(0.0, abs=1e-12)


@given(schemes, sizes, counts, details)
@few
def test_the_step_lies_between_the_bounds_and_its_parts_sum_up(scheme, sizes, ranks, detail):
    found = replay_strategy(ranks_of(ranks, sizes=sizes, gap_s=1e-4), scheme, wires(ranks), detail)
    assert found.full_overlap_s <= found.iteration_s * (1 + 1e-9)
    assert found.iteration_s <= found.no_overlap_s * (1 + 1e-9)
    assert sum(found.critical_s.values()) == pytest.approx(found.iteration_s)
    for share in found.shares:
        parts = share.compute_s + share.host_s + share.exposed_s + share.waiting_s
        assert parts == pytest.approx(found.iteration_s)
        assert share.exposed_s <= share.communication_s + 1e-12
        assert 0 <= share.idle < 1 and -1e-9 <= share.overlap <= 1


@given(
    sizes, counts, st.integers(1, 6), st.booleans(), st.floats(0, 1e-3), st.sampled_from([1e-11, 1e-10, 1e-9]),
    st.sampled_from([None, 1e9, 1e11]),
)  # fmt: skip
@few
def test_a_step_of_servers_lies_between_its_bounds(sizes, ranks, servers, overlap, alpha_s, beta_s, adds):
    scheme = ParameterServer(min(servers, ranks), MIB, adds, overlap=overlap)
    found = replay_strategy(ranks_of(ranks, sizes=sizes, gap_s=1e-4), scheme, wires(ranks, alpha_s, beta_s))
    assert found.full_overlap_s <= found.iteration_s * (1 + 1e-9)
    assert found.iteration_s <= found.no_overlap_s * (1 + 1e-9)


@pytest.mark.parametrize("place", [{"link": "ethernet-25g"}, {"link": "nvlink4"}, {"cluster": "dgx-h100"}])
@pytest.mark.parametrize("scheme", [DDP(), FSDP(), *(ParameterServer(count, MIB) for count in (1, 2, 3, None))])
def test_a_step_lies_between_its_bounds_wherever_it_runs(scheme, place):
    topology, sizes = topology_of(16, "h100", **place), [40 * MIB, 7, 3 * MIB, 9 * MIB + 1]
    found = replay_strategy(ranks_of(16, sizes=sizes), scheme, topology)
    assert found.full_overlap_s <= found.iteration_s * (1 + 1e-9)
    assert found.iteration_s <= found.no_overlap_s * (1 + 1e-9)


def test_bounds_of_servers_that_hold_more_than_others():
    """By hand: server 0 has four fifths of all, which two ranks push to it while it pulls the last fifth."""
    sizes, each_s = [MIB // 4, MIB, MIB // 4, MIB], MIB * WIRE.beta_s
    graph, topology = ranks_of(3, sizes=sizes, layer_s=1e-6, update_s=0.0), wires(3, 0.0)
    found = replay_strategy(graph, ParameterServer(2, MIB), topology)
    big, small = 2 * each_s, each_s / 2  # MiB of the servers, of layers 3 and 1 and of 2 and 0
    assert found.full_overlap_s == pytest.approx(
        2 * big + small, rel=1e-5
    )  # in: two pushes of what it has, one pull of the rest
    assert found.no_overlap_s == pytest.approx(1.2e-5 + 2 * 2 * (big + small))  # two pushes and two pulls of each part


@given(st.sampled_from(SCHEMES[:4]), sizes, counts)
@few
def test_chunks_are_the_whole_where_nothing_else_is_on_the_links(scheme, sizes, ranks):
    graph = graph_of(*(rank_graph(rank, sizes, 1e-3 * (1 + rank % 3 / 4)) for rank in range(ranks)))
    whole, chunks = (replay_strategy(graph, scheme, wires(ranks), detail) for detail in ("collective", "ring step"))
    assert chunks.iteration_s == pytest.approx(whole.iteration_s)
    # no rank is done before the chunks of the slowest have gone around
    updates = [[span.start_s for span in found.spans if span.kind == "update"] for found in (whole, chunks)]
    assert updates[1] == pytest.approx(updates[0])


@given(st.sampled_from(SCHEMES[:4]), sizes, counts, st.floats(1.0, 10.0), details)
@few
def test_faster_links_and_fewer_bytes_are_never_slower(scheme, sizes, ranks, factor, detail):
    def took_s(beta_s: float, scale: float) -> float:
        # the same buckets: what is exchanged is scaled by the time of a byte
        return replay_strategy(
            ranks_of(ranks, sizes=sizes), scheme, wires(ranks, beta_s=beta_s * scale), detail
        ).iteration_s

    assert took_s(1e-9, 1.0) <= took_s(1e-9, factor) * (1 + 1e-9)
    less, more = (
        replay_strategy(ranks_of(ranks, sizes=sizes), scheme, wires(ranks, alpha_s=alpha_s)).iteration_s
        for alpha_s in (1e-5, factor * 1e-5)
    )
    assert less <= more * (1 + 1e-9)


@given(st.integers(1, 16 * MIB), st.integers(1, 16 * MIB), counts)
@few
def test_more_bytes_in_as_many_buckets_are_never_faster(one, other, ranks):
    less, more = sorted((one, other))
    for scheme in (DDP(bucket_bytes=(64 * MIB,)), FSDP()):
        took = [
            replay_strategy(ranks_of(ranks, sizes=[size] * 3), scheme, wires(ranks)).iteration_s
            for size in (less, more)
        ]
        assert took[0] <= took[1] * (1 + 1e-9)


@given(schemes, sizes, counts, details)
@few
def test_equal_ranks_do_the_same_always(scheme, sizes, ranks, detail):
    found = replay_strategy(ranks_of(ranks, sizes=sizes), scheme, wires(ranks), detail)
    assert found == replay_strategy(ranks_of(ranks, sizes=sizes), scheme, wires(ranks), detail)
    if not isinstance(scheme, ParameterServer):  # servers of the last parts have less to do
        assert len({round(share.exposed_s, 12) for share in found.shares}) == 1
        assert all(share.waiting_s < 1e-12 for share in found.shares)


@given(sizes, counts, st.floats(1.1, 3.0))
@few
def test_a_straggler_delays_all(sizes, ranks, slower):
    graph = graph_of(*(rank_graph(rank, sizes, 1e-3 * (slower if rank == 1 else 1.0)) for rank in range(ranks)))
    found = replay_strategy(graph, DDP(), wires(ranks))
    slow = replay_strategy(ranks_of(ranks, sizes=sizes, layer_s=1e-3 * slower), DDP(), wires(ranks))
    assert found.iteration_s == pytest.approx(slow.iteration_s)
    assert found.shares[1].waiting_s < 1e-12
    for rank in set(range(ranks)) - {1}:
        assert found.shares[rank].idle > found.shares[1].idle


def test_an_unequal_server_delays_what_it_serves():
    """By hand: one part, 2 ranks, the server on rank 0 adds up for 8 ms; push and pull take 0.1 + 4.19 ms."""
    graph = ranks_of(2, sizes=[4 * MIB])
    scheme = ParameterServer(servers=1, sum_bytes_per_s=2 * 4 * MIB / 8e-3)
    message_s = WIRE.seconds(4 * MIB)
    assert replay_strategy(graph, scheme, wires(2)).iteration_s == pytest.approx(4e-3 + 2 * message_s + 8e-3)


@given(counts, st.integers(1, 4))
@few
def test_as_many_servers_as_ranks_take_as_long_as_a_ring(ranks, megabytes):
    """A part a server: each moves 2 (N - 1) / N of the bytes, without the many steps of a ring."""
    size = megabytes * MIB * ranks
    graph = ranks_of(ranks, sizes=[size])
    scheme = ParameterServer(part_bytes=megabytes * MIB, overlap=False)
    found = replay_strategy(graph, scheme, wires(ranks, alpha_s=0.0))
    around = replay_strategy(graph, DDP(overlap=False), wires(ranks, alpha_s=0.0))
    assert found.sent_bytes == pytest.approx(around.sent_bytes) == pytest.approx(2 * (ranks - 1) / ranks * size)
    assert found.iteration_s == pytest.approx(around.iteration_s)
    wire = replace(WIRE, alpha_s=0.0)
    assert found.iteration_s == pytest.approx(4e-3 + ring(Collective("all_reduce", size, ranks), wire))
    assert found.no_overlap_s == pytest.approx(4e-3 + 2 * (ranks - 1) * size * WIRE.beta_s)  # one message at a time
