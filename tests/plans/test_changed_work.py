"""Work as a plan changes it, and memory beside what is counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import CdmppError
from cdmpp.plans.changed_work import can_recompute, with_fused_update, with_micro_steps, with_recomputed
from cdmpp.plans.plan import Plan
from cdmpp.steps.work import Unit
from tests.plans.toy_job import MIB, layers, memory

WORK = layers((MIB,) * 3, (1e-3, 2e-3, 3e-3), updates=3, gap_s=1e-5)


def test_a_recomputed_unit_runs_again_before_its_backward_pass():
    made = with_recomputed(WORK, ("layer.1",))
    names = [one.name for one in made.operations]
    assert names == ["f0a", "f0b", "f1a", "f1b", "f2a", "f2b", "b2", "f1a", "f1b", "b1", "b0", "u0", "u1", "u2"]
    assert [one.phase for one in made.operations[6:11]] == ["backward"] * 5
    assert made.units[1].backward == (7, 9)  # its parameters must be there again before
    assert [one.ready_after for one in made.gradients] == [10, 9, 6]
    assert sum(made.phase_s.values()) == pytest.approx(sum(WORK.phase_s.values()) + 2e-3 + 2e-5)


def test_batches_one_after_the_other():
    made = with_micro_steps(replace(WORK, start_s=5e-3), 3)
    phases = WORK.phase_s
    assert made.phase_s["update"] == pytest.approx(phases["update"])
    assert made.phase_s["backward"] == pytest.approx(3 * phases["backward"])
    assert made.phase_s["forward"] == pytest.approx(3 * phases["forward"] + 2 * 5e-3)
    assert made.operations[made.gradients[0].ready_after].name == "b0"
    assert made.gradients[0].ready_after == len(made.operations) - 4


def test_one_update():
    made = with_fused_update(WORK)
    assert sum(one.phase == "update" for one in made.operations) == 1
    assert sum(WORK.phase_s.values()) - sum(made.phase_s.values()) == pytest.approx(2e-5)


def test_a_unit_around_others_is_none_to_recompute():
    around = Unit("around", MIB, (0, 5), (6, 8))
    assert can_recompute(replace(WORK, units=(*WORK.units, replace(around, is_kept=True)))) == WORK.units
    assert can_recompute(replace(WORK, units=(*WORK.units, around))) == ()


def test_memory_by_hand():
    held = memory(WORK, [8 * MIB] * 3)
    everything = 3 * (8 + 1) * MIB
    assert held.live_bytes((), with_gradients=False) == everything + MIB
    assert held.live_bytes() == everything + MIB  # a gradient more each time, and a layer less
    all_again = ("layer.0", "layer.1", "layer.2")
    again = (1 + 8 + 1 + 1) * MIB  # the first output, the inside of the last layer, its output and gradient
    assert held.live_bytes(all_again, with_gradients=False) == again
    size = 3 * MIB
    assert held.peak_bytes(Plan(), 1) == size + held.live_bytes()
    assert held.peak_bytes(Plan(), 2) == 2 * size + held.live_bytes()  # and the buckets
    assert held.peak_bytes(Plan(bucket_view=True), 2) == 2 * size + held.live_bytes((), False)
    assert held.peak_bytes(Plan("ps", servers=1), 2) == 2 * size + held.live_bytes()
    gathered = 2 * MIB + MIB
    assert held.peak_bytes(Plan("fsdp"), 2) == size + gathered + held.live_bytes((), False)
    much = 200 * MIB  # of the update: it starts when all gradients are there, and activations gone
    tight = replace(held, held=replace(held.held, update_bytes=much))
    assert tight.peak_bytes(Plan(), 1) == size + size + much
    assert (
        tight.peak_bytes(Plan(bucket_view=True), 2)
        == tight.peak_bytes(Plan(micro_steps=2), 2) - size
        == 2 * size + much
    )
    assert tight.peak_bytes(Plan("fsdp"), 2) == size + much // 2


@pytest.mark.parametrize(
    ("given", "told"),
    [({"scheme": "zero"}, "unknown scheme"), ({"bucket_bytes": ()}, "buckets of"), ({"micro_steps": 0}, "micro-steps")],
)
def test_plans_that_are_none(given, told):
    with pytest.raises(CdmppError, match=told):
        Plan(**given)
