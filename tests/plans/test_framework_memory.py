"""Bytes of decoders under a framework, next to the published formulas and to graphs of the same blocks in PyTorch.

Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022): a block of Megatron keeps
34 s b h bytes and 5 a s s b of scores; ranks of tensor parallelism divide 24 of the 34, with sequence parallelism all.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from cdmpp import devices
from cdmpp.errors import CdmppError
from cdmpp.network.training_step import StepMemory
from cdmpp.network.workload import Workload
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.few_heads import FEW_HEADS
from cdmpp.plans.framework_memory import FrameworkJob, framework_parts
from cdmpp.plans.frameworks import FRAMEWORKS, MEGATRON, NANOTRON
from cdmpp.plans.memory import Memory
from cdmpp.plans.sizes import MIB
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.strategies.tensor import Tensor
from cdmpp.plans.transformer_rank import stage_rank
from cdmpp.plans.transformer_shape import StageOf, TransformerShape, stage_parameters

SHAPE = TransformerShape(12, 512, 8, 2048, 50257, 1024, positions=1024)
BATCH = 4
TOKENS = 1024 * BATCH
WIDE = TOKENS * 512
"""Elements s b h."""
PLAIN = replace(MEGATRON, attention_copies=0, blas_workspace_bytes=0, messages=0)
NOTHING = StepMemory(0, 0, 0, 0, 0, 0, 0)


def saved(framework, blocks, tp=1, cp=1, again=False):
    """Bytes that blocks without embedding and head keep for the backward pass."""
    rank = stage_rank(SHAPE, framework, StageOf(blocks, False, False), BATCH, tp, cp)
    names = tuple(one.name for one in rank.modules) if again else ()
    return int(Memory(NOTHING, rank).live(names).saved)


def each(framework, **settings):
    return saved(framework, 3, **settings) - saved(framework, 2, **settings)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_a_block_keeps_what_megatron_says(tp):
    log_sums = 4 * TOKENS * 8 // tp
    assert each(PLAIN, tp=tp) == 10 * WIDE + 24 * WIDE // tp + log_sums
    divided = replace(PLAIN, sequence_parallel=True)
    assert each(divided, tp=tp) == 34 * WIDE // tp + log_sums
    scores = 5 * 8 * 1024 * 1024 * BATCH // tp
    assert each(replace(PLAIN, attention="unfused"), tp=tp) == 10 * WIDE + 24 * WIDE // tp + scores
    assert each(replace(PLAIN, attention="unfused", recompute="attention"), tp=tp) == 10 * WIDE + 24 * WIDE // tp


def test_settings_change_what_they_name():
    assert each(replace(PLAIN, dropout=False)) == each(PLAIN) - 2 * WIDE
    assert each(replace(PLAIN, attention_copies=1)) == each(PLAIN) + 2 * WIDE
    assert each(PLAIN, cp=2) == each(PLAIN) // 2
    assert each(PLAIN, again=True) == 2 * WIDE
    gathered = replace(PLAIN, sequence_parallel=True, keeps_gathered=True)
    more = 2 * (2 * WIDE - 2 * WIDE // 4)  # of both products, in place of the parts
    assert each(gathered, tp=4) == each(replace(PLAIN, sequence_parallel=True), tp=4) + more
    assert each(gathered) == each(PLAIN)
    normed = each(replace(PLAIN, head_norms=True)) - each(PLAIN)
    assert normed == 6 * WIDE  # queries, keys and values before the norm too


class Block(nn.Module):
    """A block as PyTorch runs it: norms keep what they read, and two numbers a token."""

    def __init__(self, width):
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.proj = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        inner = self.one(x)
        q, k, v = (layer(inner).unflatten(-1, (-1, 64)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.proj(found)
        return x + self.down(functional.gelu(self.up(self.two(x))))


class Blocks(nn.Module):
    def __init__(self, many):
        super().__init__()
        self.blocks = nn.ModuleList(Block(512) for _ in range(many))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def kept(many, tp):
    """Bytes that the passes of so many blocks keep, of the graph that a rank runs."""
    workload = Workload(
        Blocks(many), torch.randn(2, 256, 512), precision="bf16", mode="training_step",
        loss=lambda output: output.float().mean(),
    )  # fmt: skip
    source = PredictedSource(workload, devices.get("h100"))
    work = source.work(2, ParallelDegrees(tp=tp), (Tensor(),))
    return int(Memory(work.memory, work.rank).live().saved)


@pytest.mark.parametrize("tp", [1, 2])
def test_a_block_of_pytorch_keeps_as_much_by_its_graph(tp):
    """By the graph that tensor parallelism writes, and by the formula: norms' statistics are 8 bytes a token each."""
    shape = TransformerShape(3, 512, 8, 2048, 1000, 256)
    plain = replace(PLAIN, dropout=False)
    by_formula = [
        int(Memory(NOTHING, stage_rank(shape, plain, StageOf(many, False, False), 2, tp)).live().saved)
        for many in (3, 2)
    ]
    tokens, statistics = 512, 2 * 2 * 4 * 512
    assert by_formula[0] - by_formula[1] == tokens * 512 * (8 + 24 // tp) + 4 * tokens * 8 // tp
    assert kept(3, tp) - kept(2, tp) == pytest.approx(by_formula[0] - by_formula[1] + statistics, rel=0.01)


def test_states_and_the_padded_vocabulary():
    """Megatron pads 50,257 to a multiple of 128 a rank; a parameter is 6 bytes and 12 of states that ranks divide."""
    assert [MEGATRON.padded(50257, tp) for tp in (1, 2, 4, 8)] == [50304, 50432, 50688, 51200]
    assert NANOTRON.padded(131072, 8) == 131072
    own = MEGATRON.rank_bytes(1000, 8)
    assert (own.parameter_bytes, own.gradient_bytes, own.state_bytes) == (2000, 4000, 12 * 125)
    many = stage_parameters(SHAPE, MEGATRON, StageOf(12), 1)
    assert many == 12 * (12 * 512**2 + 13 * 512) + 50304 * 512 + 1024 * 512 + 2 * 512
    split = sum(stage_parameters(SHAPE, MEGATRON, StageOf(6, number == 0, number == 1), 1) for number in range(2))
    assert split == many + 50304 * 512  # the last stage has the embedding as its head too


def test_the_last_stage_holds_logits_twice_over():
    """Six bytes a score while the loss runs, next to what its own blocks keep of one micro-batch."""
    (part,) = framework_parts(FrameworkJob(replace(SHAPE, layers=1), PLAIN, BATCH))
    logits = 6 * TOKENS * 50304
    # the embedding's mask, what the last norm reads and what it wrote
    assert part.activations == logits + 34 * WIDE + 4 * TOKENS * 8 + WIDE + 2 * WIDE + 2 * WIDE
    apart = replace(PLAIN, holds_logits=False, inplace_loss=False)
    (other,) = framework_parts(FrameworkJob(replace(SHAPE, layers=1), apart, BATCH))
    assert other.activations - part.activations == 2 * TOKENS * 50304


def test_a_pipeline_holds_what_each_stage_has_in_flight():
    job = FrameworkJob(SHAPE, PLAIN, BATCH, 8, pp=4)
    found = framework_parts(job)
    again = framework_parts(replace(job, micro_batches=1))
    layer = each(PLAIN)
    # the first stage: embedding and three blocks, of three further micro-batches, and what a block's end leaves
    assert found[0].activations - again[0].activations == 3 * saved_first(3)
    assert found[3].activations == again[3].activations
    assert found[1].activations - found[2].activations == pytest.approx(3 * layer, rel=0.02)


def saved_first(blocks):
    rank = stage_rank(SHAPE, PLAIN, StageOf(blocks, True, False), BATCH)
    return int(Memory(NOTHING, rank).live().saved)


def test_interleaved_stages_hold_more():
    """The last of four ranks with three stages each has nine of them in flight, eight of which are saved whole."""
    deep = framework_parts(FrameworkJob(SHAPE, PLAIN, BATCH, 8, pp=4, chunks=3))[-1]
    flat = framework_parts(FrameworkJob(SHAPE, PLAIN, BATCH, 8, pp=4))[-1]
    assert deep.activations - flat.activations == pytest.approx((9 - 3) * each(PLAIN), rel=0.02)


def test_workspaces_stand_beside():
    more = replace(PLAIN, blas_workspace_bytes=64 * MIB, kernel_workspace_bytes=4 * MIB)
    (one,), (two,) = (framework_parts(FrameworkJob(SHAPE, own, 1)) for own in (PLAIN, more))
    assert two.peak_bytes - one.peak_bytes == 68 * MIB


def test_megatrons_own_attention():
    """Its scores have a buffer that stays; a softmax in float32 keeps four bytes a score in place of two."""
    job = FrameworkJob(SHAPE, replace(PLAIN, attention="unfused"), BATCH)
    scores = 2 * 8 * 1024 * 1024 * BATCH
    (one,) = framework_parts(job)
    (two,) = framework_parts(replace(job, framework=replace(job.framework, score_buffer=True)))
    assert two.peak_bytes - one.peak_bytes == scores
    (flash,), (same,) = (
        framework_parts(replace(job, framework=replace(PLAIN, score_buffer=own))) for own in (True, False)
    )
    assert flash == same
    assert each(replace(job.framework, float_softmax=True)) - each(job.framework) == scores


def test_messages_stay_beside_what_ops_read():
    job = FrameworkJob(SHAPE, PLAIN, BATCH, 8, pp=4)
    more = framework_parts(replace(job, framework=replace(PLAIN, messages=2)))
    assert [two.peak_bytes - one.peak_bytes for one, two in zip(framework_parts(job), more, strict=True)] == [
        4 * WIDE
    ] * 4
    alone = replace(job, pp=1)
    assert framework_parts(alone) == framework_parts(replace(alone, framework=replace(PLAIN, messages=2)))


def test_nanotron_cuts_by_the_parameters_of_blocks_and_head():
    """Blocks of 1 and a head of 4, in shares of 5: a stage ends with the block that reaches its share."""
    shape = TransformerShape(16, 2048, 32, 8192, 131072, 4096, is_gated=True, has_bias=False)
    job = FrameworkJob(shape, NANOTRON, 1, pp=4)
    assert [one.blocks for one in job.stages] == [5, 5, 5, 1]
    assert len(framework_parts(job)) == 4


@pytest.mark.parametrize(("settings", "told"), [
    ({"tp": 16}, "8 heads do not divide among 16 ranks"),
    ({"pp": 5}, "12 layers in 5 stages"),
    ({"pp": 2, "blocks": (6, 5)}, "12 layers in 2 stages of 6, 5"),
])  # fmt: skip
def test_what_cannot_be_is_refused(settings, told):
    with pytest.raises(CdmppError, match=told):
        framework_parts(FrameworkJob(SHAPE, PLAIN, BATCH, **settings))


def test_fewer_heads_of_keys_than_ranks_are_refused():
    """As Megatron-core before 0.16 does; plans of PyTorch's graphs refuse them by the same words."""
    with pytest.raises(CdmppError, match=f"2 heads of keys and values do not divide among 4 ranks.*; {FEW_HEADS}"):
        framework_parts(FrameworkJob(replace(SHAPE, kv_heads=2), PLAIN, BATCH, tp=4))
    with pytest.raises(CdmppError, match="^8 heads do not divide among 16 ranks: Megatron refuses such a job$"):
        framework_parts(FrameworkJob(replace(SHAPE, kv_heads=SHAPE.heads), PLAIN, BATCH, tp=16))


def test_frameworks_are_known_by_their_names():
    assert {name: one.name for name, one in FRAMEWORKS.items()} == {"megatron": "megatron", "nanotron": "nanotron"}
