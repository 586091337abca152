"""Replicas whose layers are divided over machines: seconds, bytes and memory by hand."""

from __future__ import annotations

import pytest
from plans.toy_source import ToySource

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import CdmppError
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.provisioning.replica import Replica, moved_bytes, slowdowns

WORK = ToySource().work(4, ParallelDegrees())
FREE = AlphaBeta(0.0, 1e-15)
LAYER_S = 3e-3 * 4 + 1e-4 / 8


def test_layers_are_divided_evenly_and_the_slowest_machine_sets_the_pace():
    whole, halves, three = (Replica(WORK, machines, FREE) for machines in (1, 2, 3))
    assert whole.batch_s(1, 1.0) == pytest.approx(8 * LAYER_S)
    assert halves.machine_s == pytest.approx((4 * LAYER_S, 4 * LAYER_S))
    assert halves.batch_s(1, 1.0) == pytest.approx(4 * LAYER_S)
    assert max(three.machine_s) == pytest.approx(3 * LAYER_S)
    assert sum(halves.pushed_bytes) == sum(whole.pushed_bytes) == 8 * 4_000_000


def test_threads_share_machines_and_slow_each_other():
    whole = Replica(WORK, 1, FREE)
    assert whole.batch_s(4, 1.0) == pytest.approx(8 * LAYER_S / 4)
    assert whole.batch_s(4, 1.5) == pytest.approx(1.5 * 8 * LAYER_S / 4)


def test_messages_count_where_no_other_batch_hides_them():
    output = 100_000 * 4
    slow = Replica(WORK, 2, AlphaBeta(0.0, 0.1 / output))  # a tenth of a second each, onwards and back
    assert slow.batch_s(1, 1.0) == pytest.approx((8 * LAYER_S + 0.2) / 2)
    assert slow.batch_s(4, 1.0) == pytest.approx(0.1)  # the link carries one batch each tenth of a second
    assert slow.batch_s(4, 1.0) > Replica(WORK, 2, FREE).batch_s(4, 1.0)


def test_machines_of_a_replica_hold_less_and_threads_hold_more():
    held = [Replica(WORK, machines, FREE).held_bytes(1) or 0 for machines in (1, 2, 4)]
    assert held == sorted(held, reverse=True)
    own = 4 * 8 * 4_000_000  # parameters, gradients and two states
    assert held[0] == pytest.approx(own, rel=0.1) and held[0] > own
    assert (Replica(WORK, 1, FREE).held_bytes(4) or 0) > held[0]


def test_more_machines_than_layers_are_refused():
    with pytest.raises(CdmppError, match="at most 8 stages"):
        Replica(WORK, 9, FREE).batch_s(1, 1.0)


def test_threads_move_no_more_bytes_than_memory_does():
    moved, seconds = moved_bytes(WORK.rank), 8 * LAYER_S
    factor = slowdowns(WORK, 4 * moved / seconds)  # memory for four threads
    assert [factor(count) for count in (1, 4, 8)] == pytest.approx([1.0, 1.0, 2.0])
