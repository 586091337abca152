"""Steps of equal blocks by closed form are those of a replay, task by task, and memory is what a hand counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.peers.equal_blocks.closed_form import step
from benchmarks.peers.equal_blocks.columns import Shape
from benchmarks.peers.equal_blocks.memory import in_flight, memory
from tests.publish.equal_blocks.toy_blocks import HOST, MB, MS, TIER, costs_of, plans, replay_s

UPDATE, LINKS = np.array([MS]), [TIER, TIER]
SHAPES = [
    (Shape(1, 1, 1, 1, 4), 3), (Shape(1, 4, 1, 1, 2), 2), (Shape(1, 4, 4, 1, 2), 8), (Shape(1, 2, 8, 2, 4), 4),
    (Shape(1, 4, 8, 2, 4), 8), (Shape(1, 4, 64, 4, 8), 8), (Shape(1, 4, 64, 4, 8), 4),
]  # fmt: skip


def passes(shape, costs, forward_s=0.0, backward_s=0.0):
    """Seconds of blocks of both passes with messages, and of copies to and from the host."""
    message_s = TIER.seconds("send_recv", costs.message_bytes, 2)[0] if shape.pp > 1 else 0.0
    ahead = costs.forward_s + costs.forward_split_s
    back = costs.again_s + costs.backward_s + costs.backward_split_s
    found = []
    for one, memory_s, copy_s in (
        (ahead, costs.forward_memory_s, forward_s),
        (back, costs.backward_memory_s, backward_s),
    ):
        found.append(
            (np.array([one[0, 0], one[1, 0] + message_s]), np.full(2, memory_s[0] + copy_s if copy_s else 0.0))
        )
    return found


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("weights", [1.0, 30.0])
@pytest.mark.parametrize(("shape", "many"), SHAPES)
def test_step_is_that_of_a_replay(shape, many, weights, overlaps):
    """Of large weights the exchanges of the stage that is ready first decide, of small ones those of the last."""
    costs = costs_of(weight_bytes=weights * MB)
    found = step(plans(shape, many, overlaps=overlaps), costs, UPDATE, LINKS, None)
    whole_s = TIER.seconds("all_reduce", costs.weight_bytes, shape.dp)[0]
    each_s = whole_s if overlaps and shape.dp > 1 else 0.0
    expected_s = replay_s(shape, many, *passes(shape, costs), each_s) + shape.blocks * MS
    expected_s += 0.0 if overlaps else shape.blocks * whole_s * (shape.dp > 1)
    assert found.step_s[0] == pytest.approx(expected_s, rel=1e-12)


@pytest.mark.parametrize("flags", [{"weights_out": True}, {"activations_out": True}, {"states_out": True},
                                   {"weights_out": True, "activations_out": True, "states_out": True}])  # fmt: skip
def test_copies_of_the_host_delay_a_step_as_in_a_replay(flags):
    """A forward pass reads weights while results leave; a backward pass reads all of them."""
    shape, many, costs = Shape(1, 2, 1, 2, 8), 4, costs_of()
    weights, results, sums = (4 * MB * flags.get("weights_out", False), 8 * MB * flags.get("activations_out", False),
                              4 * MB * flags.get("states_out", False))  # fmt: skip
    found = step(plans(shape, many, **flags), costs, UPDATE, LINKS, HOST)
    ahead, back = passes(shape, costs, max(weights, results) / 1e9, (weights + results + sums) / 1e9)
    update_s = shape.blocks * (24 * MS if flags.get("states_out") else MS)
    assert found.step_s[0] == pytest.approx(replay_s(shape, many, ahead, back) + update_s, rel=1e-12)
    assert (found.host_s[0] > 0) == (max(weights, results) > 0)


def test_sharded_updates_scatter_behind_the_backward_pass_and_gather_behind_the_forward_pass():
    shape, costs = Shape(1, 1, 4, 1, 4), costs_of(weight_bytes=10 * MB)
    found = step(plans(shape, 1, shards=True, overlaps=True), costs, UPDATE, LINKS, None)
    each_s = TIER.seconds("reduce_scatter", costs.weight_bytes, 4)[0]
    ahead, back = passes(shape, costs)
    behind = [replay_s(shape, 1, ahead, back, each_s) - replay_s(shape, 1, ahead, back)]
    behind.append(each_s + 3 * (each_s - ahead[0][0]))  # gathered one after the other, longer than a block runs
    assert found.replicas_s[0] == pytest.approx(sum(behind), rel=1e-12)


def test_hidden_exchanges_take_their_share_of_the_device():
    shape, costs = Shape(1, 1, 4, 1, 4), costs_of()
    free = step(plans(shape, 1, overlaps=True), costs, UPDATE, LINKS, None).replicas_s[0]
    shared = step(plans(shape, 1, overlaps=True), costs, UPDATE, [replace(TIER, device_share=0.1), TIER], None)
    whole_s = 4 * TIER.seconds("all_reduce", costs.weight_bytes, 4)[0]
    assert shared.replicas_s[0] == pytest.approx(free + 0.1 * (whole_s - free))


def test_memory_is_what_a_hand_counts():
    """8 blocks a rank: 4 MB of weights, 8 and 4 of gradients, 24 of states, 10 and 8 of results, 3 of gradients."""
    shape = Shape(1, 4, 2, 1, 8)
    own = plans(shape, 16)
    assert memory(own, costs_of()).device_bytes[0] == (8 * 4 + 8 + 7 * 4 + 8 * 24 + 3 + 10 + 8 * (8 * 4 - 1)) * MB
    sharded = memory(plans(shape, 16, shards=True), costs_of()).device_bytes[0]
    assert sharded == (8 * 4 + 8 + 7 * 2 + 8 * 12 + 3 + 10 + 8 * (8 * 4 - 1)) * MB
    out = memory(plans(shape, 16, weights_out=True, activations_out=True, states_out=True), costs_of())
    assert out.device_bytes[0] == (2 * 4 + 8 + 4 + 2 * 24 + 3 + 10 + 8) * MB
    assert out.host_bytes[0] == (8 * 4 + 8 * (4 + 24) + 8 * 8 * 4) * MB


@pytest.mark.parametrize(("stages", "many", "expected"), [(1, 2, 2), (1, 16, 4), (2, 16, 5.5), (4, 4, 4)])
def test_first_rank_holds_as_many_micro_batches_as_its_schedule_begins(stages, many, expected):
    """Interleaved: (v - 1) p + 2 (p - 1) + 1 of its v parts each, but never more than there are."""
    assert in_flight(plans(Shape(1, 4, 1, stages, 8), many))[0] == expected


def test_messages_on_the_network_of_replicas_hold_it():
    """Exchanges of the stage that is ready first then have so much less time to hide."""
    shape, costs = Shape(1, 2, 8, 2, 4), costs_of(weight_bytes=30 * MB)
    own = plans(shape, 4, overlaps=True)
    apart_s = step(own, costs, UPDATE, LINKS, None).replicas_s[0]
    same_s = step(replace(own, message_tier=own.replica_tier), costs, UPDATE, LINKS, None).replicas_s[0]
    assert same_s - apart_s == pytest.approx(2 * TIER.seconds("send_recv", costs.message_bytes, 2)[0])
