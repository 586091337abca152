"""Copies of FSDP: read out of two traces, and added to a step that has none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted
from cdmpp.errors import DataError
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import lower_work
from cdmpp.plans.plan import Plan
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import Op, RankGraph, StepGraph
from cdmpp.steps.transforms.copies import Copies, copies_of, with_copies
from tests.plans.toy_pipeline import work

PLAIN = (Op("linear", "forward", 1.0, delay_s=0.1), Op("grad", "backward", 2.0))
SHARDED = (
    Op("copy_in", "forward", 0.25), Op("linear", "forward", 9.0, delay_s=0.35), Op("copy_in", "backward", 0.3),
    Op("grad", "backward", 9.0, delay_s=0.2), Op("chunk_cat", "backward", 0.6),
)  # fmt: skip
"""Gathering takes 0.5 s in each pass, scattering 0.6; what both jobs compute does not count."""


def _traced(ops, *exchanges):
    made = (Exchange(kind, 100, dict.fromkeys((0, 1), after), wire_s=1.0) for kind, after in exchanges)
    return StepGraph(tuple(RankGraph(rank, ops) for rank in (0, 1)), tuple(made))


def test_copies_are_what_only_the_sharded_job_does():
    sharded = _traced(SHARDED, ("all_gather", 0), ("all_gather", 2), ("all_reduce", 4))
    found = copies_of(sharded, _traced(PLAIN))
    assert found.gathered_s == pytest.approx(0.5 / 100) and found.scattered_s == pytest.approx(0.6 / 100)
    with pytest.raises(DataError, match="no gathers in its forward pass or no scatters"):
        copies_of(_traced(SHARDED, ("all_gather", 0)), _traced(PLAIN))
    with pytest.raises(DataError, match="copies of a gathered byte"):
        Copies(-1.0, 0.0)


@pytest.mark.parametrize(("name", "sizes"), [("fsdp", (1, 2)), ("hsdp", (2, 2))])
def test_a_step_takes_longer_by_its_copies(name, sizes):
    """On gloo nothing hides: 3 modules of 4 kB are gathered twice and scattered once, one after the other."""
    degrees = ParallelDegrees(dp_replicate=sizes[0], dp_shard=sizes[1])
    topology = fitted(AlphaBeta(0.0, 1e-6), degrees.ranks, "gloo")
    graph = lower_work(work((1e-3, 2e-3, 1e-3), update_s=1e-3), Plan(STRATEGIES[name](), degrees), topology).graph
    own = [one.bytes for one in graph.exchanges if one.kind == "all_gather"]
    assert own == [4000] * 6
    without_s = replay(graph, topology).step_s
    assert replay(with_copies(graph, Copies(0.0, 0.0)), topology).step_s == pytest.approx(without_s)
    for copies, expected_s in ((Copies(1e-7, 0.0), 6 * 4e-4), (Copies(0.0, 1e-7), 3 * 4e-4)):
        made = with_copies(graph, copies)
        assert replay(made, topology).step_s == pytest.approx(without_s + expected_s)
        assert made.ranks[0].busy_s == pytest.approx(graph.ranks[0].busy_s + expected_s)


def test_copies_of_one_core_take_turns():
    degrees = ParallelDegrees(dp_shard=2)
    topology = fitted(AlphaBeta(0.0, 1e-6), 2, "gloo")
    graph = lower_work(work((1e-3,)), Plan(STRATEGIES["fsdp"](), degrees), topology, fold=False).graph
    shared = replace(graph, processors=("core 0", "core 0"))
    without_s = replay(shared, topology).step_s
    copies = Copies(1e-7, 0.0)
    assert replay(with_copies(shared, copies), topology).step_s == pytest.approx(without_s + 2 * 2 * 4e-4)
