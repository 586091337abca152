"""A step graph, and what a replay tells of it: shares and rows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cdmpp.errors import DataError
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.simulate.intervals import length_s, union, without
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import Gradient, Op, RankGraph
from cdmpp.steps.strategy_replay import replay_strategy
from tests.steps.toy_graph import MIB, graph_of, rank_graph, ranks_of, wires


def test_a_step_by_hand():
    """Two ranks, two layers of 1 and 2 ms; buckets of 4 MiB take 4.4 ms each, the first from 4 ms on."""
    found = replay_strategy(ranks_of(2, sizes=[4 * MIB] * 2), DDP(), wires(2))
    bucket_s = 2 * (1e-4 + 2 * MIB * 1e-9)
    assert found.iteration_s == pytest.approx(4e-3 + 2 * bucket_s + 1e-3)
    assert found.exposed_s == pytest.approx(2 * bucket_s - 2e-3)  # the backward pass of the first layer hides 2 ms
    share = found.shares[0]
    assert share.phase_s == pytest.approx({"forward": 2e-3, "backward": 4e-3, "update": 1e-3})
    assert share.overlap == pytest.approx(1e-3 / bucket_s)
    assert share.idle == pytest.approx(found.exposed_s / found.iteration_s)
    assert found.critical_s == pytest.approx(
        {"all_reduce": 2 * bucket_s, "forward": 2e-3, "backward": 2e-3, "update": 1e-3}
    )
    assert found.speed_up == pytest.approx(2 * 7e-3 / found.iteration_s)


def test_gaps_and_the_start_are_the_host_s():
    graph = graph_of(*(replace(one, start_s=5e-4) for one in ranks_of(2, sizes=[MIB], gap_s=1e-4).ranks))
    found = replay_strategy(graph, DDP(), wires(2))
    assert found.shares[0].host_s == pytest.approx(5e-4 + 3e-4)
    assert found.critical_s["start"] == pytest.approx(5e-4) and found.critical_s["gap"] > 0


def test_streams_of_one_rank_run_side_by_side():
    """A second engine: an operation on it waits for one of the first, and the next step for both."""
    ops = (
        Op("a", "forward", 1e-3),
        Op("b", "forward", 3e-3, stream="compute vector", waits=(0,)),
        Op("c", "backward", 1e-3),
        Op("d", "backward", 1e-3, waits=(1,)),
    )
    found = replay_strategy(graph_of(RankGraph(0, ops)), DDP(), wires(1))
    assert found.iteration_s == pytest.approx(5e-3)
    assert found.shares[0].compute_s == pytest.approx(5e-3)
    assert sum(found.shares[0].phase_s.values()) == pytest.approx(6e-3)


def test_json_has_a_row_for_each_rank():
    found = replay_strategy(ranks_of(4), DDP(), wires(4))
    assert json.loads(json.dumps(found.to_dict()))["by_rank"][3]["rank"] == 3


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"ops": (Op("a", "sideways", 1.0),)}, r"op 0 \('a'\) of rank 0 is of phase 'sideways'"),
        ({"ops": (Op("a", "forward", -1.0),)}, "duration of op 0"),
        ({"ops": (Op("a", "forward", 1.0, waits=(0,)),)}, "waits for op 0, which is no earlier"),
        ({"gradients": (Gradient("w", 4, 99),)}, "gradient 'w' of rank 0 has 4 bytes after op 99"),
        ({"gradients": (Gradient("w", -1, 5),)}, "gradient 'w' of rank 0 has -1 bytes"),
        ({"tail_s": -1.0}, "tail of rank 0 is -1"),
        ({"modules": (ModuleSpan("u", 4, (2, 1), (4, 5)),)}, "module 'u' of rank 0 ends before it begins"),
        ({"start_s": float("nan")}, "start of rank 0 is nan"),
        ({"update_shards": 0}, "sharded over 0 ranks"),
    ],
)
def test_a_rank_that_cannot_be_is_said(change, told):
    with pytest.raises(DataError, match=told):
        replace(rank_graph(), **{"gradients": (), "modules": (), **change})


def test_intervals():
    assert union([(3, 4), (0, 1), (1, 2), (5, 5), (3.5, 6), (9, 8)]) == [(0, 2), (3, 6)]
    assert without([(0, 10)], [(1, 2), (4, 5), (9, 12)]) == [(0, 1), (2, 4), (5, 9)]
    assert without([(0, 2), (3, 5)], [(1, 4)]) == [(0, 1), (4, 5)]
    assert without([(1, 2)], [(0, 3)]) == [] and without([(1, 2)], []) == [(1, 2)]
    assert length_s([(0, 2), (3, 6)]) == 5
