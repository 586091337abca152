"""Property: a job that ran on paper, written down as traces, is read and replayed to the same step."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.steps import exchange
from cdmpp.steps.keys import ALL_RANKS, TaskKey
from cdmpp.steps.replay import Replay, replay
from cdmpp.steps.step_graph import Op, RankGraph, StepGraph
from cdmpp.steps.tasks import STEADY
from cdmpp.trace import rank_trace
from cdmpp.trace.median_step import median_step
from cdmpp.trace.rank_trace import Exchange, RankTrace, StepTrace


def random_job(seed: int) -> StepGraph:
    """Two to four ranks that compute unequally long; each exchange is waited for by a later op, or by the last."""
    random = np.random.default_rng(seed)
    count, ops = int(random.integers(2, 5)), int(random.integers(5, 30))
    places = sorted(random.choice(ops - 2, size=min(4, ops - 2), replace=False))
    waiting = [int(random.integers(place + 2, ops)) for place in places]
    ranks = tuple(
        RankGraph(
            rank,
            tuple(Op(f"op{n}", "forward", random.uniform(1, 9), delay_s=random.uniform(0, 0.5)) for n in range(ops)),
            tail_s=random.uniform(0, 1),
        )
        for rank in range(count)
    )
    exchanges = tuple(
        exchange.Exchange(
            "all_reduce", 1000 + n, dict.fromkeys(range(count), int(place)),
            dict.fromkeys(range(count), (waiting[n],)), wire_s=random.uniform(0.1, 30),
        )
        for n, place in enumerate(places)
    )  # fmt: skip
    return StepGraph(ranks, exchanges, "gloo", int(random.integers(1, 3)))


def written(run: Replay, shift_s: float) -> list[RankTrace]:
    """The reported step of a replay as ranks would have traced it; the last rank's clock is ahead by ``shift_s``."""
    spans, job, traces = run.timeline.spans, run.graph, []
    for rank in job.ranks:
        ahead_s = shift_s if rank is job.ranks[-1] else 0.0
        ops = [spans[TaskKey(STEADY, "op", rank.rank, place)] for place in range(len(rank.ops))]
        exchanges = [
            Exchange(one.kind, one.bytes, _arrival(spans, place, rank.rank, job) + ahead_s,
                     spans[TaskKey(STEADY, "exchange", ALL_RANKS, place)].end_s + ahead_s, one.after[rank.rank],
                     waited_by=one.before[rank.rank][0])
            for place, one in enumerate(job.exchanges)
        ]  # fmt: skip
        step = StepTrace(
            3,
            spans[TaskKey(STEADY - 1, "end", rank.rank, 0)].end_s + ahead_s,
            spans[TaskKey(STEADY, "end", rank.rank, 0)].end_s + ahead_s,
            tuple(
                rank_trace.Op(op.name, op.phase, span.start_s + ahead_s, span.end_s + ahead_s)
                for op, span in zip(rank.ops, ops, strict=True)
            ),
            tuple(exchanges),
        )
        traces.append(RankTrace(rank.rank, len(job.ranks), "gloo", (step,), workers=job.workers))
    return traces


def _arrival(spans, place: int, rank: int, job: StepGraph) -> float:
    """When a worker of the rank took it: once it was launched and the one before on that worker had ended."""
    before = place - job.workers
    launched = spans[TaskKey(STEADY, "arrival", rank, place)].end_s
    return max(launched, spans[TaskKey(STEADY, "exchange", ALL_RANKS, before)].end_s) if before >= 0 else launched


@pytest.mark.parametrize("seed", range(40))
def test_unchanged_settings_give_the_measured_step(seed):
    run = replay(random_job(seed))
    read = median_step(written(run, 0.0))
    again = replay(read)
    assert again.step_s == pytest.approx(run.step_s, rel=1e-6)
    assert again.waits_s == pytest.approx(run.waits_s, abs=1e-6)
    for mine, its in zip(read.ranks, run.graph.ranks, strict=True):
        assert mine.busy_s == pytest.approx(its.busy_s)  # measured less what it stood idle
    assert [one.wire_s for one in read.exchanges] == pytest.approx([one.wire_s for one in run.graph.exchanges])


@pytest.mark.parametrize("seed", range(5))
def test_clocks_far_apart_change_little(seed):
    run = replay(random_job(seed))
    exact, shifted = median_step(written(run, 0.0)), median_step(written(run, 1e6))
    longest = max(one.wire_s for one in exact.exchanges)
    assert replay(shifted).step_s == pytest.approx(run.step_s, abs=2 * longest)
