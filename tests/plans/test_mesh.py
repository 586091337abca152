"""Ranks are numbered along the degrees, and every group has its own exchange."""

from __future__ import annotations

import pytest

from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.groups import on_groups
from cdmpp.plans.mesh import Mesh
from cdmpp.steps.exchange import Exchange

MESH = Mesh(ParallelDegrees(pp=2, dp_replicate=2, filter=2))


def test_neighbours_along_the_innermost_degree_are_next_to_each_other():
    assert MESH.groups("filter") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert MESH.groups("dp_replicate") == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert MESH.groups("pp") == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert MESH.groups("filter", "dp_replicate") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert MESH.groups() == tuple((rank,) for rank in range(8))
    assert MESH.place(5, "pp") == 1
    assert MESH.place(5, "filter") == 1
    assert MESH.place(5, "dp_replicate") == 0
    assert MESH.group_of(5, ["dp_replicate"]) == (5, 7)


@pytest.mark.parametrize("degrees", [("pp",), ("dp_replicate", "filter"), ("dp_shard",), ()])
def test_every_rank_is_in_one_group(degrees):
    groups = MESH.groups(*degrees)
    assert sorted(rank for group in groups for rank in group) == list(range(8))
    assert all(MESH.group_of(rank, degrees) == group for group in groups for rank in group)


def test_an_exchange_is_given_to_each_group_and_once_to_groups_that_are_alike():
    one = Exchange("all_reduce", 8, dict.fromkeys(range(8), 3), {rank: (4,) for rank in range(8)})
    whole = on_groups(one, ("dp_replicate",), MESH, range(8))
    assert [exchange.members for exchange in whole] == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert [exchange.after for exchange in whole] == [dict.fromkeys(exchange.members, 3) for exchange in whole]
    stages = [MESH.place(rank, "pp") for rank in range(8)]
    folded = Exchange("all_reduce", 8, {0: 3, 1: 3})
    assert [(e.members, e.after) for e in on_groups(folded, ("dp_replicate",), MESH, stages)] == [
        ((0, 2), {0: 3}),
        ((4, 6), {1: 3}),
    ]
