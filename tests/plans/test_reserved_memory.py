"""What the allocator reserves for a framework's job, next to what its tensors hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import CdmppError
from cdmpp.plans.allocations import Allocations
from cdmpp.plans.framework_memory import FrameworkJob, framework_parts
from cdmpp.plans.frameworks import MEGATRON, NANOTRON
from cdmpp.plans.op_kinds import PARAMETERS
from cdmpp.plans.reserved_memory import reserved_bytes
from cdmpp.plans.sizes import MIB
from cdmpp.plans.transformer_rank import stage_rank
from cdmpp.plans.transformer_shape import StageOf, TransformerShape, parameter_sizes, stage_parameters
from cdmpp.steps.step_graph import Op, RankGraph

SHAPE = TransformerShape(8, 1024, 16, 4096, 32000, 2048, is_gated=True, has_bias=False, is_tied=False)


def held(allocations):
    """Bytes that are taken and not let go after each moment."""
    live, found = {}, []
    for one in (*allocations.forward, *allocations.backward):
        live.update(one.taken)
        for name, _ in one.freed:
            del live[name]
        found.append(sum(live.values()))
    return found


def test_tensors_live_until_their_last_reader_has_run():
    ops = (
        Op("a", "forward", 0.0, output_bytes=100),
        Op("b", "forward", 0.0, output_bytes=14, result_bytes=10, saved_bytes=4, own_saved_bytes=4, inputs=(0,)),
        Op("c", "forward", 0.0, inputs=(1,)),
        Op("c back", "backward", 0.0, output_bytes=10, inputs=(1,), forward=2),
        Op("b back", "backward", 0.0, output_bytes=100, inputs=(3, 1), forward=1),
        Op("a back", "backward", 0.0, inputs=(4,), forward=0),
    )  # fmt: skip
    found = Allocations.of(RankGraph(0, ops))
    assert (len(found.forward), len(found.backward)) == (3, 3)
    # a goes after b, b's result with the first of its gradients, its mask with the second
    assert held(found) == [100, 14, 14, 14, 100, 0]


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("stage", [StageOf(2), StageOf(2, False, False), StageOf(2, False, True)])
def test_all_that_is_taken_is_let_go(stage, recompute):
    for framework in (NANOTRON, replace(MEGATRON, recompute=recompute, attention="unfused")):
        rank = stage_rank(SHAPE, framework, stage, 1, 2)
        names = tuple(one.name for one in rank.modules) if recompute == "full" else ()
        assert held(Allocations.of(rank, names))[-1] == 0


@pytest.mark.parametrize("change", [
    {}, {"tp": 2}, {"pp": 4}, {"tp": 4, "pp": 2}, {"shards": 8, "replicas": 8}, {"replicas": 8},
])  # fmt: skip
def test_as_much_as_tensors_hold_at_least(change):
    job = FrameworkJob(SHAPE, NANOTRON, 2, 8, **change)
    for rank, one in enumerate(framework_parts(job)):
        assert one.peak_bytes * 0.99 <= reserved_bytes(job, rank) <= one.peak_bytes * 1.6 + 100 * MIB


def test_interleaved_stages_and_recomputed_blocks():
    framework = replace(MEGATRON, recompute="full")
    deep = FrameworkJob(SHAPE, framework, 2, 8, pp=2, chunks=2)
    for rank, one in enumerate(framework_parts(deep)):
        assert one.peak_bytes * 0.95 <= reserved_bytes(deep, rank) <= one.peak_bytes * 1.5
    plain = replace(deep, framework=MEGATRON)
    assert reserved_bytes(plain) > reserved_bytes(deep)


def test_a_host_that_is_ahead_needs_more():
    """Nothing is late without tensor parallelism, or where the host waits for each message of a pipeline."""
    job = FrameworkJob(SHAPE, NANOTRON, 2, 4, tp=4)
    waits = replace(job, framework=replace(NANOTRON, host_ahead=0))
    wide = 2 * 2 * 2048 * 1024
    assert reserved_bytes(job) - reserved_bytes(waits) > 8 * wide  # of eight blocks, two each
    assert reserved_bytes(replace(job, tp=1)) == reserved_bytes(replace(waits, tp=1))
    assert reserved_bytes(replace(job, pp=2)) == reserved_bytes(replace(waits, pp=2))


def test_what_does_not_fit_is_refused():
    job = FrameworkJob(SHAPE, NANOTRON, 2, 4)
    (one,) = framework_parts(job)
    assert reserved_bytes(job, 0, 2 * one.peak_bytes) <= 2 * one.peak_bytes
    with pytest.raises(CdmppError, match="do not fit"):
        reserved_bytes(job, 0, one.peak_bytes // 2)


def test_buckets_and_gathered_weights_of_nanotron():
    """DDP has buckets of two bytes a parameter; ZeRO gathers weights into a list, and NCCL into one tensor."""
    job = FrameworkJob(SHAPE, NANOTRON, 1, 4)
    many = stage_parameters(SHAPE, NANOTRON, job.stages[0], 1)
    assert many == sum(parameter_sizes(SHAPE, NANOTRON, job.stages[0], 1))
    plain, ddp = NANOTRON.rank_bytes(many, 1), NANOTRON.rank_bytes(many, 1, 8)
    assert (plain.bucket_bytes, ddp.bucket_bytes) == (0, 2 * many)
    assert NANOTRON.rank_bytes(many, 8, 8).update_bytes == 4 * many + 2 * (many // 8)
    assert MEGATRON.rank_bytes(many, 8, 8).update_bytes == MEGATRON.rank_bytes(many, 1, 8).bucket_bytes == 0
    (alone,), (both,) = framework_parts(job), framework_parts(replace(job, replicas=8))
    assert both.peak_bytes - alone.peak_bytes == 2 * many


def test_each_product_writes_the_gradient_of_its_weights():
    """They are in bfloat16, and live until they are added up in float32."""
    rank = stage_rank(SHAPE, NANOTRON, StageOf(3, False, True), 1, 2)
    written = sum(op.output_bytes for op in rank.ops if op.kind == PARAMETERS)
    norms = 7 * 1024
    assert written == 2 * (stage_parameters(SHAPE, NANOTRON, StageOf(3, False, True), 2) - norms)
    assert not [op for op in stage_rank(SHAPE, MEGATRON, StageOf(3), 1, 2).ops if op.kind == PARAMETERS]


def test_heads_are_laid_out_anew():
    """Queries are a view of all three where keys have as many heads; keys and values are written once more."""

    def kept(shape):
        each = [Allocations.of(stage_rank(shape, NANOTRON, StageOf(many, False, False), 1, 1)) for many in (3, 2)]
        return held(each[0])[len(each[0].forward) - 1] - held(each[1])[len(each[1].forward) - 1]

    wide = 2 * 2048 * 1024
    sums = 4 * 2048 * 16
    assert kept(SHAPE) == (4 + 5 + 1 + 4 * 4) * wide + sums
    assert kept(replace(SHAPE, kv_heads=4)) == (4 + 1 + 0.5 + 1 + 4 * 4) * wide + sums
