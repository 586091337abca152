"""Memory of pipelines that users of other tools found wrong: uneven stages, few micro-batches, buffers of messages.

Megatron-Bridge PR 5077 (an estimate that divided layers by stages was 32 % low), Megatron-LM PR 482 (one number for
ranks that hold 20 and 50 GB).
"""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from benchmarks.plan_memory import JOBS, Segmenter, Stage, Watch, estimated
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import lower_work
from cdmpp.plans.plan import Plan
from cdmpp.plans.question import Question
from cdmpp.plans.rank_memory import parts_of, peak_of
from cdmpp.plans.sources.table import TableSource
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.pipeline import Pipeline
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
    for row in np.flatnonzero(~np.isnan(judged.costs.step_s)).tolist():
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
    results of 1 kB lie beside them, seven outputs to be returned, and the gradient that went to the first stage last.
    """
    closed, own = plans(8)[8]
    assert own == 4 * 72_000 + 80_000 + 61_000 + 8 * 1000 + 7 * 1000 + 1000
    assert closed == pytest.approx(own)


def test_few_micro_batches_are_in_flight_whole():
    """One micro-batch of 8 examples: all that it saved counts once, never less.

    Of the gradients only the head's and that of its input are there while most is saved; 8 kB were received.
    """
    found = plans(8, "gpipe") | plans(8)  # of one micro-batch, plans of both schedules are alike and count once
    assert found[1][1] == 3 * 72_000 + 8 * 80_000 + 60_000 + 8000 + 8000
    assert np.all([closed == pytest.approx(own) for closed, own in found.values()])


def test_gpipe_holds_what_all_micro_batches_saved():
    closed, own = plans(8, "gpipe")[8]
    assert own == 4 * 72_000 + 8 * 80_000 + 61_000 + 8 * 1000 + 1000
    assert closed == pytest.approx(own)


LOGITS = (*ROWS[:7], Layer("head", 1e-3, 2e-3, 60_000, 40_000, saved_bytes=0), Layer("loss", 0.0, 0.0, 0, 0, 50_000))
"""The head makes 40 kB that no backward pass reads, and the loss saves 50 kB."""


def stages(schedule, returns, rows=LOGITS, many=8):
    pipeline = Pipeline(schedule, many, ("block.3",), return_outputs=returns)
    plan = Plan(DDP(), ParallelDegrees(pp=2), model_parallel=(pipeline,))
    source = TableSource(rows)
    work = source.work(1, plan.degrees)
    return [one.peak_bytes for one in parts_of(work, plan, lower_work(work, plan, links(2)), False)]


@pytest.mark.parametrize(("schedule", "returns", "outputs", "saved"), [
    ("1f1b", False, 1, 1), ("1f1b", True, 8, 1), ("gpipe", False, 8, 8), ("gpipe", True, 8, 8),
])  # fmt: skip
def test_outputs_live_to_their_backward_pass_or_to_the_end_of_the_step(schedule, returns, outputs, saved):
    """``fwd_cache`` of a stage of ``torch.distributed.pipelining`` has them, and ``output_chunks`` if it returns them.

    The gradient of the output, 40 kB, lives where most does. Returned outputs are copied into one after the passes.
    """
    first, last = stages(schedule, returns)
    in_passes, copied = saved * 80_000 + outputs * 40_000 + 40_000, 2 * 8 * 40_000 if returns else 0
    assert last == 4 * 72_000 + max(in_passes, copied) + 8 * 1000 + 1000
    in_flight = 8 if schedule == "gpipe" else 2
    # Its last block saved its own output. The first layer's gradient is made when only the output of one is left.
    assert first == 4 * 72_000 + (in_flight - 1) * 30_000 + 60_000 + 1000 + 8 * 1000


@pytest.mark.parametrize("returns", [True, False])
def test_an_output_that_grows_after_the_last_layer_is_what_torch_holds(returns):
    """Scores of 4 MB a micro-batch, of which the last layer makes a 64th. Torch holds those that it is to return."""
    stages = [job for job in JOBS if job.network == "segmenter" and job.settings["schedule"] == "1f1b"]
    (job,) = [one for one in stages if one.settings["return_outputs"] is returns]
    torch.manual_seed(0)
    stage = Stage(Segmenter(), 1)
    optimizer = torch.optim.AdamW(stage.parameters())
    received = [torch.randn(4, 64, 16, 16, requires_grad=True) for _ in range(job.batches)]
    with Watch() as watch:
        for _ in range(2):
            optimizer.zero_grad()
            outputs = []
            for one in received:
                outputs = [*outputs, stage(one)] if returns else [stage(one)]
                Segmenter.loss(outputs[-1], one).backward()
                one.grad = None
            kept = torch.cat(outputs) if returns else None
            del outputs, kept
            optimizer.step()
            gc.collect()
    assert estimated(job, 2)[1].peak_bytes == pytest.approx(watch.most, rel=0.05)
