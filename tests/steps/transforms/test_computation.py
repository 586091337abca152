"""A traced step without its exchanges, under a parallel strategy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import CdmppError
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.steps.probed_topology import probed_topology
from cdmpp.steps.step_graph import Measured
from cdmpp.steps.strategy_replay import replay_strategy
from cdmpp.steps.transforms.computation import computation
from cdmpp.steps.transforms.rebucket import rebucket
from tests.steps.toy_traced import MB, job, step_s


def test_strategies_take_what_was_traced():
    one = job(latency_s=0.25)
    graph = computation(one)
    assert graph.ranks[0].phase_s == {"forward": 4.0, "backward": 8.0, "update": 0.5}
    assert graph.ranks[0].gradient_bytes == 4 * MB
    for size in (MB, 2 * MB, 100 * MB):
        found = replay_strategy(graph, DDP((size,)), probed_topology(one))
        assert found.iteration_s == pytest.approx(step_s(rebucket(one, size)), rel=1e-3)
    with pytest.raises(CdmppError, match=r"cdmpp.trace.probe"):
        probed_topology(replace(one, measured=Measured()))
