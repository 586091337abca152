"""Property: a job that ran on paper, written down as traces, is read and replayed to the same step."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.trace.job import JobExchange, JobOp, JobRank, TracedJob
from cdmpp.trace.rank_trace import Exchange, Op, RankTrace, StepTrace
from cdmpp.trace.replay import Replay, replay
from cdmpp.trace.usual_step import usual_step


def random_job(seed: int) -> TracedJob:
    """Two to four ranks that compute unequally long; each exchange is waited for by a later op, or by the last."""
    random = np.random.default_rng(seed)
    count, ops = int(random.integers(2, 5)), int(random.integers(5, 30))
    places = sorted(random.choice(ops - 2, size=min(4, ops - 2), replace=False))
    waits: dict[int, list[int]] = {}
    for number, place in enumerate(places):
        waits.setdefault(int(random.integers(place + 2, ops)), []).append(number)
    ranks = tuple(
        JobRank(
            rank,
            tuple(
                JobOp(f"op{n}", "forward", random.uniform(1, 9), random.uniform(0, 0.5), tuple(waits.get(n, ())))
                for n in range(ops)
            ),
            tail_s=random.uniform(0, 1),
        )
        for rank in range(count)
    )
    exchanges = tuple(
        JobExchange("all_reduce", 1000 + n, dict.fromkeys(range(count), int(place)), random.uniform(0.1, 30),
                    dict.fromkeys(range(count), 0.0))
        for n, place in enumerate(places)
    )  # fmt: skip
    return TracedJob(ranks, exchanges, (1.0,), "gloo", int(random.integers(1, 3)))


def written(run: Replay, shift_s: float) -> list[RankTrace]:
    """The last step of a replay as ranks would have traced it; the last rank's clock is ahead by ``shift_s``."""
    spans, job, traces = run.timeline.spans, run.job, []
    for rank in job.ranks:
        ahead_s = shift_s if rank is job.ranks[-1] else 0.0
        name = f"2/rank{rank.rank}"
        ops = [spans[f"{name}/{place}"] for place in range(len(rank.ops))]
        exchanges = [
            Exchange(one.kind, one.bytes, _arrival(spans, place, rank.rank, job) + ahead_s,
                     spans[f"2/exchange{place}"].end_s + ahead_s, one.after[rank.rank],
                     waited_by=next((n for n, op in enumerate(rank.ops) if place in op.waits), None))
            for place, one in enumerate(job.exchanges)
        ]  # fmt: skip
        step = StepTrace(
            3,
            spans[f"1/rank{rank.rank}/end"].end_s + ahead_s,
            spans[f"{name}/end"].end_s + ahead_s,
            tuple(
                Op(op.name, op.phase, span.start_s + ahead_s, span.end_s + ahead_s)
                for op, span in zip(rank.ops, ops, strict=True)
            ),
            tuple(exchanges),
        )
        traces.append(RankTrace(rank.rank, len(job.ranks), "gloo", (step,), workers=job.workers))
    return traces


def _arrival(spans, place: int, rank: int, job: TracedJob) -> float:
    """When a worker of the rank took it: once it was launched and the one before on that worker had ended."""
    before = place - job.workers
    launched = spans[f"2/arrival{place}/rank{rank}"].end_s
    return max(launched, spans[f"2/exchange{before}"].end_s) if before >= 0 else launched


@pytest.mark.parametrize("seed", range(40))
def test_unchanged_settings_give_the_measured_step(seed):
    run = replay(random_job(seed))
    read = usual_step(written(run, 0.0))
    again = replay(read)
    assert again.step_s == pytest.approx(run.step_s, rel=1e-6)
    assert again.rank_waits_s == pytest.approx(run.rank_waits_s, abs=1e-6)
    for mine, its in zip(read.ranks, run.job.ranks, strict=True):
        assert mine.busy_s == pytest.approx(its.busy_s)  # measured less what it stood idle
    assert [one.wire_s for one in read.exchanges] == pytest.approx([one.wire_s for one in run.job.exchanges])


@pytest.mark.parametrize("seed", range(5))
def test_clocks_far_apart_change_little(seed):
    run = replay(random_job(seed))
    exact, shifted = usual_step(written(run, 0.0)), usual_step(written(run, 1e6))
    longest = max(one.wire_s for one in exact.exchanges)
    assert replay(shifted).step_s == pytest.approx(run.step_s, abs=2 * longest)
