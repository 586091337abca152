"""Closed form of jobs with parameter servers: right values, bounds, and the replay beside it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from plans.toy_source import ToySource

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.plans.provisioning.configuration import Configuration
from cdmpp.plans.provisioning.pace import COMPUTE, SERVER_LINK, WORKER_LINK, Pace
from cdmpp.plans.provisioning.question import ProvisioningQuestion
from cdmpp.plans.provisioning.replayed import replayed
from cdmpp.synchrony.policies.stale_synchronous import StaleSynchronous
from cdmpp.synchrony.policies.synchronous import Synchronous

LINK = AlphaBeta(1e-4, 1 / 1e9)
BYTES = 8 * 4_000_000
BATCH_S = 8 * 3e-3 * 32 + 1e-4
"""Of the toy's eight layers with 32 examples: both passes, and the update."""


def question(**changes: Any) -> ProvisioningQuestion:
    return ProvisioningQuestion(ToySource(), LINK, 200, 32, **changes)


def pace(replicas: int, servers: int = 1, **changes: Any) -> Pace:
    return Pace(question(**changes), Configuration(replicas, 1, 1, servers))


def test_one_replica_takes_its_batch_and_two_copies():
    alone = pace(1, overlap=False)
    assert alone.cycle_s == pytest.approx(BATCH_S + 2 * (1e-4 + BYTES / 1e9))
    assert alone.samples_per_s == pytest.approx(32 / alone.cycle_s)
    assert pace(1).cycle_s == pytest.approx(BATCH_S)  # the copies hide behind the next batch
    slow = pace(1, overlap=False, add_bytes_per_s=1e8)
    assert slow.cycle_s == pytest.approx(alone.cycle_s + BYTES / 1e8)


def test_commits_share_what_they_cost():
    rare = pace(1, overlap=False, commit_every=4)
    assert rare.cycle_s == pytest.approx(4 * BATCH_S + 2 * (1e-4 + BYTES / 1e9))
    assert rare.samples_per_s == pytest.approx(4 * 32 / rare.cycle_s)


def test_many_replicas_go_as_fast_as_the_links_of_the_servers():
    for servers in (1, 2):
        full = pace(100, servers)
        assert full.samples_per_s == pytest.approx(32 * servers / (BYTES / 1e9), rel=0.02)
        assert full.limit == SERVER_LINK and full.load == pytest.approx(1.0, abs=0.02)
        assert full.knee == pytest.approx(BATCH_S / (BYTES / servers / 1e9), rel=0.01)
    assert pace(2).limit == COMPUTE


def test_one_round_is_the_slowest_and_all_copies():
    together = pace(8, synchrony=Synchronous())
    assert together.cycle_s == pytest.approx(BATCH_S + 2 * (1e-4 + 8 * BYTES / 1e9))
    assert pace(8, 8, synchrony=Synchronous()).cycle_s == pytest.approx(BATCH_S + 2 * (1e-4 + BYTES / 1e9))
    spread = pace(8, synchrony=Synchronous(), spread=0.1)
    assert spread.slowest_s == pytest.approx(BATCH_S * 1.1424, rel=0.005)  # the mean of the largest of 8 normal values


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("replicas", [1, 3, 20, 60])
def test_no_pace_is_above_its_bound_and_more_of_anything_is_not_slower(replicas: int, overlap: bool):
    one = pace(replicas, overlap=overlap)
    assert one.samples_per_s <= one.most_samples_per_s * (1 + 1e-9)
    assert pace(replicas + 1, overlap=overlap).samples_per_s >= one.samples_per_s
    assert pace(replicas, 2, overlap=overlap).samples_per_s >= one.samples_per_s * (1 - 1e-9)
    assert sum(one.parts_s.values()) == pytest.approx(one.cycle_s)


def test_own_link_limits_where_exchanges_take_longer_than_training():
    narrow = Pace(ProvisioningQuestion(ToySource(forward_s=1e-5), LINK, 64, 32), Configuration(4, 1, 1, 32))
    assert narrow.limit == WORKER_LINK
    assert narrow.cycle_s == pytest.approx(2 * (1e-4 + BYTES / 1e9), rel=0.02)


@pytest.mark.parametrize(
    ("replicas", "servers", "changes", "allowed"),
    [
        (4, 1, {"synchrony": Synchronous()}, 1e-6),
        (12, 2, {"synchrony": Synchronous(), "add_bytes_per_s": 2e9}, 1e-6),
        (8, 1, {"synchrony": Synchronous(), "spread": 0.05}, 0.03),
        (8, 1, {"spread": 0.1}, 0.02),
        (8, 1, {"spread": 0.1, "overlap": False}, 0.02),
        (40, 1, {"spread": 0.1}, 0.05),
        (8, 1, {"spread": 0.1, "synchrony": StaleSynchronous(1000)}, 0.02),
        (6, 1, {"spread": 0.1, "commit_every": 3, "overlap": False}, 0.02),
    ],
)
def test_closed_form_and_replay_agree(replicas: int, servers: int, changes: dict[str, Any], allowed: float):
    asked, one = question(**changes), Configuration(replicas, 1, 1, servers)
    assert Pace(asked, one).samples_per_s == pytest.approx(replayed(asked, one)[0], rel=allowed)


@pytest.mark.parametrize(
    ("servers", "below", "above"), [(8, 0.12, 0.06), (7, 0.06, 0.08), (4, 0.0, 0.12), (1, 0.0, 0.12)]
)
def test_about_the_knee_the_closed_form_is_near_where_exchanges_take_longer(servers, below, above):
    """As ResNet-50 on a T4 at 0.66 GB/s: a push and a pull take 1.35 batches, and 8 servers are at the knee."""
    link = AlphaBeta(1e-5, 1.35 * BATCH_S / 2 / BYTES)
    asked, one = ProvisioningQuestion(ToySource(), link, 40, 32, spread=0.05), Configuration(16, 1, 1, servers)
    error = Pace(asked, one).samples_per_s / replayed(asked, one)[0] - 1
    assert -below <= error <= above
    assert Pace(asked, one).knee == pytest.approx(2 * servers, rel=0.01)


def test_kernels_that_are_slower_by_a_factor_make_a_slower_pace():
    alone = pace(1)
    assert Pace(alone.question, alone.configuration, 2.0).cycle_s == pytest.approx(2 * BATCH_S)
    assert math.isfinite(alone.knee)


def test_links_that_limit_nothing_leave_training():
    free = Pace(ProvisioningQuestion(ToySource(), AlphaBeta(0.0, 0.0), 8, 32), Configuration(4, 1, 1, 1))
    assert free.cycle_s == pytest.approx(BATCH_S) and free.knee == math.inf and free.load == 0.0
    assert free.most_samples_per_s == pytest.approx(free.samples_per_s)
