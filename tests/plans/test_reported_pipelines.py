"""Memory of pipelines that users of other tools found wrong: uneven stages, few micro-batches, buffers of messages.

Megatron-Bridge PR 5077 (an estimate that divided layers by stages was 32 % low), Megatron-LM PR 482 (one number for
ranks that hold 20 and 50 GB).
"""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted
from cdmpp.plans.lower import lower_work
from cdmpp.plans.question import Question
from cdmpp.plans.refine import peak_of
from cdmpp.plans.sources.table import TableSource
from cdmpp.steps.from_layers import Layer

ROWS = (
    Layer("embed", 0.0, 0.0, 60_000, 1000, saved_bytes=0),
    *(Layer(f"block.{i}", 1e-3, 2e-3, 4000, 1000, saved_bytes=10_000) for i in range(6)),
    Layer("head", 1e-3, 2e-3, 60_000, 1000, saved_bytes=50_000),
)
"""Seven layers of 3 ms: stages are embed and three blocks, three blocks and the head."""


def links(ranks):
    return fitted(AlphaBeta(0.0, 1e-12), ranks, "nccl")


def plans(batch, schedule="1f1b"):
    """Micro-batches -> bytes of the heaviest stage by closed form, and by the plan itself, of two stages."""
    question = Question(TableSource(ROWS), links, 2, batch, ("pipeline",))
    judged, found = question.judged(), {}
    for row in range(len(judged.plans.reason)):
        plan = question.plan(judged.plans, row)
        (pipeline,) = plan.model_parallel
        if pipeline.schedule == schedule and not plan.recompute:
            work = question.source.work(int(judged.plans.micro_batch[row]), plan.degrees)
            own = peak_of(work, plan, lower_work(work, plan, links(2)), False)
            found[pipeline.micro_batches] = float(judged.costs.memory_bytes[row]), own
    return found


def test_the_heaviest_stage_counts_and_not_the_average():
    """8 micro-batches of one example. The last stage has 72 kB of parameters, gradients and twice as much Adam states.

    While the head's gradient is made, 3 x 10 + 50 kB are saved, and gradients of 60 and 1 kB are there. Eight received
    results of 1 kB lie beside them.
    """
    closed, own = plans(8)[8]
    assert own == 4 * 72_000 + 80_000 + 61_000 + 8 * 1000
    assert closed == pytest.approx(own)


def test_few_micro_batches_are_in_flight_whole():
    """One micro-batch of 8 examples: all that it saved counts once, never less.

    Of the gradients only the head's and that of its input are there while most is saved; 8 kB were received.
    """
    found = plans(8)
    assert found[1][1] == 3 * 72_000 + 8 * 80_000 + 60_000 + 8000 + 8000
    assert np.all([closed == pytest.approx(own) for closed, own in found.values()])


def test_gpipe_holds_what_all_micro_batches_saved():
    closed, own = plans(8, "gpipe")[8]
    assert own == 4 * 72_000 + 8 * 80_000 + 61_000 + 8 * 1000
    assert closed == pytest.approx(own)
