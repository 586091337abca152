"""Schedules replayed: equality with closed forms and with each other, locks, memory and staleness."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import UsageError
from cdmpp.partition.chain import Chain, Part
from cdmpp.partition.closed_form import closed_form_s
from cdmpp.partition.devices import HostCosts, StageDevice
from cdmpp.partition.graph import Layer, Parameter, PartitionGraph
from cdmpp.partition.outcome import LOCKS, replayed
from cdmpp.partition.problem import PartitionProblem
from cdmpp.plans.schedules import SCHEDULES

NAMES = [one.name for one in SCHEDULES]
FREE = AlphaBeta(0.0, 0.0)


def chain(
    schedule, forward_s, backward_s, many=8, link=FREE, update_s=0.0, size=1, overlap=True, replicas=None, host=None
):
    count = len(forward_s)
    layers = tuple(Layer(str(place), (place - 1,) if place else (), size) for place in range(count))
    graph = PartitionGraph(layers, tuple(Parameter(str(place), 1, (place,)) for place in range(count)))
    passes = np.array(forward_s, float), np.array(backward_s, float)
    device = StageDevice("one", *passes, link, update_s, host=host or HostCosts())
    parts = tuple(Part((place,), 0, (replicas or [1] * count)[place]) for place in range(count))
    devices = (device,) * sum(one.replicas for one in parts)
    has_replicas = replicas is not None
    return Chain(PartitionProblem(graph, devices, SCHEDULES[schedule](), many, overlap, replicas=has_replicas), parts)


@pytest.mark.parametrize("schedule", NAMES)
def test_one_stage_is_a_device_by_itself(schedule):
    made = chain(schedule, [2.0], [3.0], many=4)
    step_s = 12.0 if schedule == "side-by-side" else 20.0
    assert replayed(made).step_s == pytest.approx(step_s) == closed_form_s(made)


def test_delayed_on_one_stage_is_sequential_with_an_update_each():
    delayed, sequential = (chain(name, [1.0], [2.0], 1, update_s=0.5) for name in ("delayed", "sequential"))
    assert replayed(delayed).step_s == pytest.approx(replayed(sequential).step_s) == 3.5
    assert delayed.costs[0].live == 1 and delayed.costs[0].staleness == 0


def test_delayed_steps_take_what_1f1b_with_infinitely_many_micro_batches_and_no_flush_takes():
    draw = np.random.default_rng(0)
    for count in (2, 3, 4):
        forward_s, backward_s = draw.random(count), 2 * draw.random(count)
        slowest_s = max(forward_s + backward_s)
        delayed, stream = (replayed(chain(name, forward_s, backward_s, 1)) for name in ("delayed", "pipedream"))
        assert delayed.step_s == pytest.approx(stream.step_s) == pytest.approx(slowest_s)
        flushed = replayed(chain("1f1b", forward_s, backward_s, 512))
        assert flushed.step_s / 512 == pytest.approx(slowest_s, rel=0.02)


def test_two_workers_take_the_longer_pass():
    made = chain("side-by-side", [1.0, 2.0, 1.0], [3.0, 3.5, 1.0], 4)
    assert replayed(made).step_s == pytest.approx(4 * 3.5) == closed_form_s(made)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_flushed_schedules_take_the_bubble_of_their_papers(schedule):
    made = chain(schedule, [1.0] * 4, [2.0] * 4, 8)
    found = replayed(made)
    assert found.step_s == pytest.approx((8 + 4 - 1) * 3.0) == closed_form_s(made)
    assert found.computing == pytest.approx(8 / 11)


def test_locks_of_a_sequential_step():
    found = replayed(chain("sequential", [1.0] * 4, [2.0] * 4, 8))
    assert found.computing == pytest.approx(0.25)
    first, last = found.shares[0], found.shares[-1]
    assert first.waiting == pytest.approx(dict(zip(LOCKS, (0.0, 9 / 12, 0.0), strict=True)))
    # the last stage waits for backward passes of the stages before it, then for their forward passes
    assert last.waiting == pytest.approx(dict(zip(LOCKS, (3 / 12, 0.0, 6 / 12), strict=True)))
    assert {lock: found.waiting(lock) for lock in LOCKS} == pytest.approx(
        dict(zip(LOCKS, (0.125, 0.375, 0.25), strict=True))
    )


@pytest.mark.parametrize("schedule", NAMES)
def test_replays_are_never_below_the_closed_form_and_hold_and_wait_as_said(schedule):
    draw = np.random.default_rng(len(schedule))
    for turn in range(24):
        count, many = int(draw.integers(1, 5)), int(draw.integers(1, 9))
        many = max(many, count) if schedule == "2bw" else many
        link = AlphaBeta(*draw.random(2) * (0.2, 0.5)) if turn % 2 else FREE
        passes = draw.random(count), 2 * draw.random(count)
        host = HostCosts(*(0.2 * draw.random(4)).tolist()) if turn % 3 else None
        made = chain(schedule, *passes, many, link, 0.3 * draw.random(), turn % 3, overlap=turn % 4 > 0, host=host)
        found = replayed(made)
        assert found.step_s >= closed_form_s(made) * 0.995  # a window need not be whole cycles
        for share in found.shares:
            assert share.computing + share.sending + sum(share.waiting.values()) == pytest.approx(1.0)
        for stage, cost in enumerate(made.costs):
            assert found.live(stage) <= cost.live and found.staleness(stage) <= cost.staleness


def test_closed_form_counts_messages_of_a_slow_link():
    """Each of four messages takes 3 s; the last one leaves after the first pass, and its two passes and the way back
    follow. 1f1b sends no third one before the first came back."""
    made = chain("1f1b", [1.0, 1.0], [1.0, 1.0], 4, AlphaBeta(1.5, 0.0))
    made = replace(made, problem=replace(made.problem, graph=_no_gradients(made.problem.graph)))
    assert closed_form_s(made) == pytest.approx(1 + 4 * 3 + 2 + 1)
    assert replayed(made).step_s == pytest.approx(17.0)
    alone = chain("sequential", [1.0, 1.0], [1.0, 1.0], 4, AlphaBeta(1.5, 0.0))
    assert closed_form_s(alone) == pytest.approx(replayed(alone).step_s) == pytest.approx(4 * (4 + 2 * 3))


def _no_gradients(graph):
    return replace(graph, layers=tuple(replace(one, has_gradient=False) for one in graph.layers))


def test_closed_form_with_messages_is_near_the_replay():
    draw, ratios = np.random.default_rng(7), []
    for turn in range(60):
        count, link = int(draw.integers(2, 5)), AlphaBeta(*draw.random(2) * (0.5, 0.5))
        passes = draw.random(count), 2 * draw.random(count)
        made = chain(("gpipe", "1f1b")[turn % 2], *passes, int(draw.integers(2, 9)), link, overlap=turn % 4 > 1)
        ratios.append(closed_form_s(made) / replayed(made).step_s)
    assert max(ratios) <= 1 + 1e-9 and np.mean(ratios) > 0.9 and min(ratios) > 0.6


def test_what_a_host_adds_lengthens_passes_and_keeps_a_sender():
    """A stage takes 1 + 2 s, 0.1 s a pass, 0.2 s for the message that it sends and 0.3 s for that which it needs."""
    made = chain("delayed", [1.0, 1.0], [2.0, 2.0], 1, update_s=0.0, host=HostCosts(0.1, 0.2, 0.3, 0.4))
    assert made.slowest_s == pytest.approx(3 + 0.2 + 0.2 + 0.3 + 0.4) == pytest.approx(replayed(made).step_s)
    assert (made.costs[0].forward_s, made.costs[0].backward_s) == pytest.approx((1.1, 2.4))
    share = replayed(made).shares[0]
    assert share.sending == pytest.approx(0.2 / 4.1) and share.computing == pytest.approx(3.9 / 4.1)
    turns = chain("sequential", [1.0, 1.0], [2.0, 2.0], 4, host=HostCosts(0.1, 0.2, 0.3, 0.4))
    assert replayed(turns).step_s == pytest.approx(4 * (6 + 4 * 0.1 + 2 * 0.3) + 0.4)
    with pytest.raises(UsageError, match=r"host.send_s"):
        HostCosts(send_s=-1.0)


def test_memory_and_staleness_of_each_schedule_are_reached():
    live = {"gpipe": [8] * 3, "1f1b": [3, 2, 1], "pipedream": [3, 2, 1], "2bw": [3, 2, 1], "delayed": [5, 3, 1],
            "sequential": [1] * 3, "side-by-side": [6, 4, 2]}  # fmt: skip
    stale = {"pipedream": [2, 1, 0], "2bw": [1, 1, 0], "delayed": [4, 2, 0], "side-by-side": [5, 3, 1]}
    for schedule, wanted in live.items():
        made = chain(schedule, [1.0] * 3, [2.0] * 3, 8)
        found = replayed(made)
        assert [found.live(stage) for stage in range(3)] == wanted == [one.live for one in made.costs]
        assert [found.staleness(stage) for stage in range(3)] == stale.get(schedule, [0] * 3)


def test_delays_hide_messages_that_a_flushed_pipeline_waits_for():
    link = AlphaBeta(0.4, 0.0)
    times = {name: replayed(chain(name, [1.0] * 4, [1.0] * 4, 8, link)).step_s for name in NAMES}
    assert times["delayed"] == pytest.approx(16.0)
    assert times["pipedream"] == pytest.approx(8 * (8 + 6 * 0.8) / 4)  # the round trip of four under way
    assert times["1f1b"] > times["pipedream"] and times["sequential"] == pytest.approx(8 * (8 + 6 * 0.8))


def test_replicas_of_a_stage_take_micro_batches_in_turn():
    made = chain("pipedream", [1.0, 3.0], [1.0, 3.0], 6, replicas=[1, 3])
    found = replayed(made)
    # the sum of gradients brings replicas into step: four under way are too few to feed all three at once
    assert closed_form_s(made) == pytest.approx(6 * 2.0) and found.step_s == pytest.approx(6 * 8 / 3)
    assert [str(one.worker) for one in found.shares] == ["stage 0", "stage 1", "stage 1 replica 1", "stage 1 replica 2"]
    flushed = replayed(chain("gpipe", [1.0, 3.0], [1.0, 3.0], 6, replicas=[1, 3]))
    assert flushed.step_s == pytest.approx(6 * 1 + 3 + 3 + 6 * 1, rel=0.35)


def test_two_versions_of_weights_need_a_micro_batch_a_stage():
    assert "give 4 micro-batches or more" in SCHEDULES["2bw"]().why_not(4, 3)
    assert SCHEDULES["2bw"]().why_not(4, 4) == SCHEDULES["delayed"]().why_not(4, 1) == ""
