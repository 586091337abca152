"""Memory next to what is counted by hand."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from cdmpp.network.liveness import CallBytes, Lifetimes
from cdmpp.network.training_step import StepMemory
from cdmpp.plans.allocator import CONTEXT, PARTLY_FILLED, taken_bytes
from cdmpp.plans.live_bytes import LiveBytes, RunOrder
from cdmpp.plans.memory import MemoryParts, peak_parts
from cdmpp.plans.op_bytes import OpBytes
from cdmpp.plans.plan import Plan, plan_on
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.parameter_server import ParameterServer
from cdmpp.steps.from_layers import Layer, graph_of_layers
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import Op
from cdmpp.steps.strategy import RankBytes
from tests.plans.toy_job import MIB, layers, memory

RANK = layers((MIB,) * 3, (1e-3, 2e-3, 3e-3), updates=3, gap_s=1e-5)


def test_memory_by_hand():
    held = memory(RANK, [8 * MIB] * 3)
    everything = 3 * (8 + 1) * MIB
    assert held.live().passes == everything + MIB
    assert held.live().with_gradients == everything + MIB  # a gradient more each time, and a layer less
    all_again = ("layer.0", "layer.1", "layer.2")
    again = (1 + 8 + 1 + 1) * MIB  # the first output, the inside of the last layer, its output and gradient
    assert held.live(all_again).passes == again
    size = 3 * MIB
    assert held.peak_bytes(Plan()) == size + held.live().with_gradients
    assert held.peak_bytes(plan_on(2)) == 2 * size + held.live().with_gradients  # and the buckets
    assert held.peak_bytes(plan_on(2, DDP(gradient_as_bucket_view=True))) == 2 * size + held.live().passes
    assert held.peak_bytes(plan_on(2, ParameterServer(servers=1))) == 2 * size + held.live().with_gradients
    # parameters by two, two modules gathered; of gradients all at the end of the backward pass, and half of all
    assert held.peak_bytes(plan_on(2, "fsdp")) == size // 2 + 2 * MIB + held.live().passes + size // 2
    much = 200 * MIB  # of the update: it starts when all gradients are there, and activations gone
    tight = replace(held, held=replace(held.held, update_bytes=much))
    assert tight.peak_bytes(Plan()) == size + size + much
    assert (
        tight.peak_bytes(plan_on(2, DDP(gradient_as_bucket_view=True)))
        == tight.peak_bytes(plan_on(2, gradient_accumulation_steps=2)) - size
        == 2 * size + much
    )
    assert tight.peak_bytes(plan_on(2, "fsdp")) == size + much // 2


def test_a_call_in_place_keeps_what_it_writes_into():
    """Such as the gradient of a loss that is scaled where it stands: 8 bytes of 0, read through 1 by 2."""
    made = [Op("loss", "backward", 0.0, output_bytes=8), Op("scaled", "backward", 0.0, inputs=(0,))]
    read = Op("scores", "backward", 0.0, output_bytes=4, inputs=(1,))
    during, _ = Lifetimes.of([*made, read], [(place, True) for place in range(3)]).alive(CallBytes.of([*made, read]))
    assert during.tolist() == [8, 8, 12]


@pytest.mark.parametrize("layers", [2, 4, 8])
def test_a_layer_that_runs_again_reads_the_result_of_the_one_before_and_not_what_that_saved(layers):
    """Layers save 100 bytes and hand on 10: recomputed ones leave 10 each, the one that runs again its 100."""
    made = [Layer(f"layer.{i}", 1.0, 2.0, 1, 10, saved_bytes=100) for i in range(layers)]
    rank = graph_of_layers(made).ranks[0]
    names = tuple(f"layer.{i}" for i in range(layers))
    kept, again = (RunOrder.of(rank, own).live(OpBytes.of(rank.ops), (), False) for own in ((), names))
    assert kept.saved == 100 * layers
    assert again.saved == 10 * (layers - 1)  # nothing reads the last result
    assert again.passes == 10 * (layers - 2) + 100 + 10 + 1  # of the last layer, with gradients of input and parameter


def test_buckets_hold_parameters_without_a_gradient_too():
    strategy, module = DDP(find_unused_parameters=True), ModuleSpan("all", 3 * MIB, (0, 0), (1, 1))
    held = StepMemory(3 * MIB, 2 * MIB, 0, 0, 0, 0, 0)
    assert strategy.rank_bytes(held, (module,), {"dp_replicate": 2}).bucket_bytes == 3 * MIB
    assert strategy.rank_bytes(held, (), {"dp_replicate": 2}).bucket_bytes == 2 * MIB


def test_parts_sum_up_to_the_peak():
    held = memory(RANK, [8 * MIB] * 3)
    held = replace(held, held=replace(held.held, state_bytes=6 * MIB, buffer_bytes=5, input_bytes=7))
    found = held.parts(plan_on(2))
    assert found == MemoryParts(
        parameters=3 * MIB, gradients=MIB, optimizer=6 * MIB, buffers=5, inputs=7,
        activations=held.live().with_gradients - MIB, communication=3 * MIB,
    )  # fmt: skip
    assert found.peak_bytes == held.peak_bytes(plan_on(2)) == sum(getattr(found, one.name) for one in fields(found))
    assert found.largest == "activations"
    update = replace(held, held=replace(held.held, update_bytes=200 * MIB)).parts(Plan())
    assert (update.activations, update.gradients, update.workspace) == (0, 3 * MIB, 200 * MIB)
    assert update.largest == "workspace"


SCHEDULES = {
    "gpipe": lambda stages, stage, count: ["F"] * count + ["B"] * count,
    "1f1b": lambda stages, stage, count: _one_forward_one_backward(min(count, stages - stage), count),
}


def _one_forward_one_backward(ahead, count):
    return ["F"] * (ahead - 1) + ["F", "B"] * (count - ahead + 1) + ["B"] * (ahead - 1)


def _timeline_bytes(rank, order):
    """Peak of all micro-batches of a schedule, op by op; the first one's gradients stay, the others are added to it."""
    split = sum(op.phase == "forward" for op in rank.ops)
    passes = {"F": range(split), "B": range(split, sum(op.phase != "update" for op in rank.ops))}
    made = {one.ready_after for one in rank.gradients}
    ops, kept, places, done = [], [], {}, {"F": 0, "B": 0}
    for phase in order:
        number, done[phase] = done[phase], done[phase] + 1
        for place in passes[phase]:
            places[number, place] = len(ops)
            op = rank.ops[place]
            ops.append(replace(op, inputs=tuple(places[number, source] for source in op.inputs)))
            if place in made and number == 0:
                kept.append(places[number, place])
    runs = [(place, op.phase == "backward") for place, op in enumerate(ops)]
    during, _ = Lifetimes.of(ops, runs).alive(CallBytes.of(ops), kept)
    return int(during.max())


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_closed_form_is_the_peak_of_the_timeline(schedule, stages, micro_batches):
    held = memory(RANK, [8 * MIB, 3 * MIB, 5 * MIB])
    for stage in range(stages):
        in_flight = micro_batches if schedule == "gpipe" else min(micro_batches, stages - stage)
        found = held.parts(Plan(), micro_batches, in_flight)
        alive = _timeline_bytes(held.rank, SCHEDULES[schedule](stages, stage, micro_batches))
        gap = found.gradients + found.activations - alive
        if micro_batches == 1 or in_flight < micro_batches:
            assert gap == 0
        else:
            assert 0 <= gap <= held.held.gradient_bytes


def test_the_heaviest_stage_counts_and_arrays_say_the_same():
    """Four stages of 1, 1, 1 and 5 parts: a quarter of the whole would be too little by more than a third."""
    stages = [memory(layers((MIB,) * n, (1e-3,) * n), [8 * MIB] * n) for n in (1, 1, 1, 5)]
    in_flight = [min(2, 4 - stage) for stage in range(4)]
    assert in_flight == [2, 2, 2, 1]
    peaks = [one.parts(Plan(), 2, count).peak_bytes for one, count in zip(stages, in_flight, strict=True)]
    assert max(peaks) == peaks[3] > 1.5 * sum(peaks) / 4

    def arrays(kind, values):
        return kind(**{one.name: np.array([getattr(v, one.name) for v in values]) for one in fields(kind)})

    held = arrays(StepMemory, [one.held for one in stages])
    own = arrays(RankBytes, [Plan().strategy.rank_bytes(one.held, one.rank.modules, {}) for one in stages])
    found = peak_parts(held, own, arrays(LiveBytes, [one.live() for one in stages]), 2, np.array(in_flight))
    assert found.peak_bytes.tolist() == peaks


def test_the_allocator_of_a_gpu_takes_blocks():
    assert taken_bytes(np.array([0, 1, 512, 513, 2**20 + 1])).tolist() == [0, 512, 512, 1024, 2**20 + 512]
    assert taken_bytes(np.array([10 * MIB - 1, 10 * MIB, 11 * MIB])).tolist() == [10 * MIB, 10 * MIB, 12 * MIB]
    held = memory(RANK, [8 * MIB + 1] * 3)
    gpu = replace(held, is_gpu=True).parts(Plan())
    assert gpu.rounding == 3 * 511 + PARTLY_FILLED and gpu.context == CONTEXT
    assert gpu.peak_bytes == held.peak_bytes(Plan()) + gpu.rounding + gpu.context
