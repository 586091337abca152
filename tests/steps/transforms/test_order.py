"""Recompute, accumulate, fuse the update: ops in their new order, and what names their places moved along."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.network.training_step import StepMemory
from cdmpp.plans.memory import Memory
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import Gradient, Op, RankGraph, StepGraph
from cdmpp.steps.transforms.accumulate import accumulate
from cdmpp.steps.transforms.fuse_update import can_fuse_update, fuse_update
from cdmpp.steps.transforms.recompute import can_recompute, recompute
from tests.plans.toy_job import MIB, layers

RANK = layers((MIB,) * 3, (1e-3, 2e-3, 3e-3), updates=3, gap_s=1e-5)
GRAPH = StepGraph((RANK,))


def test_a_recomputed_module_runs_again_before_its_backward_pass():
    (made,) = recompute(GRAPH, ("layer.1",)).ranks
    names = [one.name for one in made.ops]
    assert names == ["f0a", "f0b", "f1a", "f1b", "f2a", "f2b", "b2", "f1a", "f1b", "b1", "b0", "u0", "u1", "u2"]
    assert [one.phase for one in made.ops[6:11]] == ["backward"] * 5
    assert made.modules[1].backward == (7, 9)  # its parameters must be there again before
    assert [one.ready_after for one in made.gradients] == [10, 9, 6]
    assert sum(made.phase_s.values()) == pytest.approx(sum(RANK.phase_s.values()) + 2e-3 + 2e-5)


def _linear_gelu_linear():
    """Seconds of forward ops: 1, 0.1 and 1. Each linear keeps what it reads, and so does GELU."""
    forward = [
        Op("linear", "forward", 1.0, output_bytes=4 * MIB),
        Op("gelu", "forward", 0.1, output_bytes=4 * MIB, inputs=(0,)),
        Op("linear", "forward", 1.0, output_bytes=MIB, inputs=(1,)),
    ]
    backward = [
        Op("linear backward", "backward", 2.0, inputs=(1,)),
        Op("gelu backward", "backward", 0.1, inputs=(3, 0)),
        Op("linear backward", "backward", 1.0, inputs=(4,)),
    ]
    gradients = (Gradient("0.weight", MIB, 5), Gradient("2.weight", MIB, 3))
    return RankGraph(0, (*forward, *backward), gradients, (ModuleSpan("0", 2 * MIB, (0, 2), (3, 5)),))


def test_recomputing_stops_at_the_last_result_that_is_read():
    """torch's non-reentrant checkpoint runs one matrix product again, not two: 1.1 s, not 2.1."""
    rank = _linear_gelu_linear()
    (made,) = recompute(StepGraph((rank,)), ("0",)).ranks
    names = [op.name for op in made.ops[3:]]
    assert names == ["linear", "gelu", "linear backward", "gelu backward", "linear backward"]
    assert made.phase_s["backward"] - rank.phase_s["backward"] == pytest.approx(1.1)
    assert made.ops[5].inputs == (4,) and made.ops[6].inputs == (5, 3)  # what ran again is read
    held = Memory(StepMemory(2 * MIB, 2 * MIB, 0, 0, 0, 0, 0), rank)
    assert (held.live().with_gradients, held.live(("0",)).with_gradients) == (
        9 * MIB,
        8 * MIB,
    )  # its output is not there twice
    assert made.modules[0].backward == (3, 7)


def test_a_module_that_only_keeps_its_input_runs_nothing_again():
    rank = _linear_gelu_linear()
    alone = replace(rank, modules=(ModuleSpan("2", MIB, (2, 2), (3, 3)),))
    assert recompute(StepGraph((alone,)), ("2",)).ranks == (alone,)


def test_batches_one_after_the_other():
    (made,) = accumulate(StepGraph((replace(RANK, start_s=5e-3),)), 3).ranks
    phases = RANK.phase_s
    assert made.phase_s["update"] == pytest.approx(phases["update"])
    assert made.phase_s["backward"] == pytest.approx(3 * phases["backward"])
    assert made.phase_s["forward"] == pytest.approx(3 * phases["forward"] + 2 * 5e-3)
    assert made.ops[made.gradients[0].ready_after].name == "b0"
    assert made.gradients[0].ready_after == len(made.ops) - 4


def test_one_update():
    assert can_fuse_update(GRAPH)
    (made,) = fuse_update(GRAPH).ranks
    assert sum(one.phase == "update" for one in made.ops) == 1
    assert sum(RANK.phase_s.values()) - sum(made.phase_s.values()) == pytest.approx(2e-5)


def test_a_module_around_others_is_none_to_recompute():
    around = ModuleSpan("around", MIB, (0, 5), (6, 8))
    assert can_recompute(replace(RANK, modules=(*RANK.modules, replace(around, is_kept=True)))) == RANK.modules
    assert can_recompute(replace(RANK, modules=(*RANK.modules, around))) == ()


def test_exchanges_follow_their_ops():
    """Launched after the last backward op and waited for by the first update: by that of the last batch, or of all."""
    updates = tuple(place for place, op in enumerate(RANK.ops) if op.phase == "update")
    graph = StepGraph((RANK,), (Exchange("all_reduce", MIB, {0: 8}, {0: (updates[1],)}),))
    (one,) = accumulate(graph, 2).exchanges
    assert (one.after, one.before) == ({0: 17}, {0: (19,)})
    (one,) = recompute(graph, ("layer.1",)).exchanges
    assert (one.after, one.before) == ({0: 10}, {0: (12,)})
    (one,) = fuse_update(graph).exchanges  # the update that waits is kept, the two others are one
    assert (one.after, one.before) == ({0: 8}, {0: (9,)})
