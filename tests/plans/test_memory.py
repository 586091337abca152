"""Memory next to what is counted by hand."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.network.training_step import StepMemory
from cdmpp.plans.plan import Plan, plan_on
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.parameter_server import ParameterServer
from cdmpp.steps.step_graph import ModuleSpan
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
    assert held.peak_bytes(Plan()) == size + held.live_bytes()
    assert held.peak_bytes(plan_on(2)) == 2 * size + held.live_bytes()  # and the buckets
    assert held.peak_bytes(plan_on(2, DDP(gradient_as_bucket_view=True))) == 2 * size + held.live_bytes((), False)
    assert held.peak_bytes(plan_on(2, ParameterServer(servers=1))) == 2 * size + held.live_bytes()
    gathered = 2 * MIB + MIB
    assert held.peak_bytes(plan_on(2, "fsdp")) == size + gathered + held.live_bytes((), False)
    much = 200 * MIB  # of the update: it starts when all gradients are there, and activations gone
    tight = replace(held, held=replace(held.held, update_bytes=much))
    assert tight.peak_bytes(Plan()) == size + size + much
    assert (
        tight.peak_bytes(plan_on(2, DDP(gradient_as_bucket_view=True)))
        == tight.peak_bytes(plan_on(2, gradient_accumulation_steps=2)) - size
        == 2 * size + much
    )
    assert tight.peak_bytes(plan_on(2, "fsdp")) == size + much // 2


def test_buckets_hold_parameters_without_a_gradient_too():
    strategy, module = DDP(find_unused_parameters=True), ModuleSpan("all", 3 * MIB, (0, 0), (1, 1))
    held = StepMemory(3 * MIB, 2 * MIB, 0, 0, 0, 0, 0)
    assert strategy.rank_bytes(held, (module,), 2).kept_bytes == (3 + 3) * MIB
    assert strategy.rank_bytes(held, (), 2).kept_bytes == (3 + 2) * MIB
