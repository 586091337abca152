"""Steps that differ: the usual step is the median of the work that at least half of them have."""

from __future__ import annotations

from functools import lru_cache
from random import Random

import pytest

from cdmpp.steps.replay import replay
from cdmpp.trace.folder import TracedJob, read_traces, traced_job
from cdmpp.trace.rank_trace import HOST, Op, StepTrace
from cdmpp.trace.traced_step import traced_steps
from cdmpp.trace.usual_work import usual_work
from tests.trace.field_jobs import Trace

MS = 1e3


def read(folder) -> TracedJob:
    return traced_job(folder, read_traces(folder))


def work(job: TracedJob, rank: int = 0) -> list[tuple[str, float]]:
    return [(op.name, round(MS * op.duration_s, 6)) for op in job.graph.ranks[rank].ops if op.stream != HOST]


def written(folder, steps, rank=0, world=1):
    """Write steps of 30 ms: kernels with their ms, each 100 us after the one before; collectives on a stream apart."""
    trace = Trace(rank, world)
    for number, kernels in enumerate(steps):
        begin = 30000.0 * number
        trace.mark(number, begin, 30000)
        at = begin + 200
        for place, (name, ms) in enumerate(kernels):
            is_exchange = name.startswith("nccl")
            trace.device(name, begin + 2 * place, at + 100, MS * ms, stream=20 if is_exchange else 7)
            at += 100 + MS * ms
    return trace.save(folder)


def test_medians_are_over_the_steps_that_have_an_op(tmp_path):
    """Steps 1 to 5 times as long; `router` is in three of them, `cache` in two, which include the first."""
    steps = []
    for factor in (1, 5, 2, 4, 3):
        kernels = [(f"mix_{i}", float(factor)) for i in range(4)]
        kernels[2:2] = [("router", 0.5 * factor)] * (factor in (1, 2, 5)) + [("cache", 2.5)] * (factor in (1, 4))
        steps.append(kernels)
    job = read(written(tmp_path, steps))
    assert work(job) == [("mix_0", 3), ("mix_1", 3), ("router", 1), ("mix_2", 3), ("mix_3", 3)]
    gaps = [MS * op.delay_s for op in job.graph.ranks[0].ops if op.stream != HOST]
    assert gaps[1:] == pytest.approx([0.1] * 4, rel=0.1)  # they make up for the router that the median step lacks
    assert replay(job.graph).step_s == pytest.approx(job.graph.measured.step_s, rel=1e-3)
    (text,) = [one for one in job.warnings if "steps differ" in one]
    assert "3 of 5 have other operators than the usual step" in text
    assert "2 operators and exchanges, 7.2 % of the operators' time of all steps, are in fewer and left out" in text
    assert "2 of the usual ones are missing in some" in text
    for step in traced_steps(job):
        assert step.replayed_s == pytest.approx(step.measured_s, rel=1e-3)


def test_what_half_of_the_steps_have_counts_where_the_median_step_has_it(tmp_path):
    steps = [[("mix", 2.0), ("decode", 1.0)]] * 2 + [[("mix", 2.0), ("prefill", 8.0), ("prefill", 8.0)]] * 2
    for number, marked in enumerate((steps, steps[::-1])):
        job = read(written(tmp_path / str(number), marked))
        assert work(job) in ([("mix", 2), ("decode", 1)], [("mix", 2), ("prefill", 8), ("prefill", 8)])


def test_a_step_that_lasts_longer_for_other_work_does_not_count_twice(tmp_path):
    """One step of seven saves a checkpoint for 20 ms: neither its kernels nor gaps are of the usual step."""
    steps = [[("mix_0", 2.0), ("mix_1", 3.0)]] * 6 + [[("mix_0", 2.0), ("save", 20.0), ("mix_1", 3.0)]]
    job = read(written(tmp_path, steps))
    assert work(job) == [("mix_0", 2), ("mix_1", 3)]
    assert replay(job.graph).step_s == pytest.approx(job.graph.measured.step_s, rel=1e-3)


def test_steps_with_nothing_in_common_are_answered_from_one(tmp_path):
    steps = [[(f"step_{number}", 1.0 + number), ("mix", 0.5)] for number in range(5)]
    job = read(written(tmp_path, steps))
    assert work(job) == [("step_2", 3), ("mix", 0.5)]
    assert any("of median length, is answered from" in text for text in job.warnings)


def test_exchanges_that_some_steps_lack(tmp_path):
    """Three of four steps exchange at their end, one accumulates gradients only."""
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"
    steps = [[("mix", 2.0), (name, ms), ("sgd", 1.0)] for ms in (3.0, 4.0, 5.0)]
    steps.insert(1, [("mix", 2.0), ("sgd", 1.0)])
    for rank in range(2):
        written(tmp_path, steps, rank, 2)
    job = read(tmp_path)
    (one,) = job.graph.exchanges
    assert MS * one.measured_s == pytest.approx(4) and one.ranks == (0, 1)
    for rank in (0, 1):
        ops = job.graph.ranks[rank].ops
        assert ops[one.after[rank]].name == "mix" and [ops[place].name for place in one.before[rank]] == ["sgd"]
    assert any(
        "1 of 4 have other operators" in text and "2 of the usual ones are missing" in text for text in job.warnings
    )
    assert [round(MS * one.replayed_s, 3) for one in traced_steps(job)] == [30.0] * 4


def step_of(names: str) -> StepTrace:
    ops = tuple(Op(name, "forward", float(place), place + 1.0, stream="7") for place, name in enumerate(names))
    return StepTrace(0, 0.0, float(len(names)), ops, (), host_s=1.0)


def longest(one: str, other: str) -> int:
    @lru_cache(None)
    def at(i: int, j: int) -> int:
        if i == len(one) or j == len(other):
            return 0
        return max(at(i + 1, j), at(i, j + 1), (one[i] == other[j]) + at(i + 1, j + 1) if one[i] == other[j] else 0)

    return at(0, 0)


@pytest.mark.parametrize("seed", range(40))
def test_two_steps_share_their_longest_common_subsequence(seed):
    random = Random(seed)
    one, other = ("".join(random.choices("abcd", k=random.randrange(1, 40))) for _ in range(2))
    columns = usual_work([step_of(one), step_of(other)], 0).columns
    assert sum(column[1] is not None for column in columns) == longest(one, other)
    assert [column[0] for column in columns] == list(range(len(one)))
    assert all(other[column[1]] == one[column[0]] for column in columns if column[1] is not None)
    there = [column[1] for column in columns if column[1] is not None]
    assert there == sorted(there)


def test_medians_that_make_no_step_are_not_answered(tmp_path):
    """Two streams at once, 20 and 2 ms, 2 and 20, 6 and 6: medians of 6 and 6 make 6 ms, and two steps took 20."""
    trace = Trace()
    for number, lengths in enumerate(((20, 2), (2, 20), (6, 6))):
        begin = 20000.0 * number
        trace.mark(number, begin, MS * max(lengths))
        for place, ms in enumerate(lengths):
            trace.device(f"mix_{place}", begin + 2 * place, begin + 100, MS * ms - 100, stream=7 + place)
    job = read(trace.save(tmp_path))
    assert replay(job.graph).step_s == pytest.approx(0.02, rel=1e-3) and job.graph.measured.step_s == pytest.approx(
        0.02
    )
    (warning,) = [one for one in job.warnings if "medians" in one]
    assert "of median length, is answered from" in warning and "20, 1: 20, 2: 6" in warning
