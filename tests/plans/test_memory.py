"""Memory next to what is counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import CdmppError
from cdmpp.plans.plan import Plan
from tests.plans.toy_job import MIB, layers, memory

RANK = layers((MIB,) * 3, (1e-3, 2e-3, 3e-3), updates=3, gap_s=1e-5)


def test_memory_by_hand():
    held = memory(RANK, [8 * MIB] * 3)
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
