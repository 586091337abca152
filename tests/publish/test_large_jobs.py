"""Large jobs of the benchmarks: pieces of a network, stages made of them, and fits of a few factors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.plans import nanotron_jobs
from benchmarks.plans.large_factors import Factors, fitted
from benchmarks.plans.large_job import Job, Links, Run, Stages
from benchmarks.plans.large_pieces import BLOCK, EMBEDDING, HEAD, Exchange, Pass, Piece, Pieces
from benchmarks.plans.large_scores import Choice, Interval, nearest_in_order, of_one, of_terms, out_of_fold
from benchmarks.plans.megatron_network import Shape
from benchmarks.plans.nanotron_jobs import blocks_of
from benchmarks.plans.vtrain_jobs import Row
from benchmarks.plans.vtrain_kinds import Kinds
from cdmpp.collectives.topology import topology_of
from cdmpp.plans.transformer_shape import TransformerShape

PLAIN = Factors(1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)

SECONDS = st.floats(0, 10, allow_nan=False)


def one_pass(device_s: float, host_s: float = 0.0, exchanges: tuple[Exchange, ...] = ()) -> Pass:
    return Pass(np.array([device_s / 2] * 2), np.array([host_s / 2] * 2), exchanges)


def stages(pipeline: int = 1, tensor: int = 1, data: int = 1, host_s: float = 0.0, layers: int = 8) -> Stages:
    around = Piece(one_pass(1e-3, host_s), one_pass(2e-3, host_s))
    shared = (Exchange("all_reduce", 10**6),) * 2
    block = Piece(one_pass(3e-3, host_s, shared), one_pass(6e-3, host_s, shared))
    own = Pieces({EMBEDDING: around, BLOCK: block, HEAD: around}, 0.0)
    links = Links(topology_of(8, "a100", "dgx-a100"))
    return Stages(own, links, tensor, data, (layers // pipeline,) * pipeline, 0, 0, 0, 0, 1e12)


def test_a_job_of_one_stage_takes_all_its_ops_for_each_micro_batch():
    assert Job(stages(), 5).seconds(PLAIN) == pytest.approx(5 * (8 * 9e-3 + 6e-3))


@pytest.mark.parametrize(("pipeline", "many"), [(2, 4), (4, 1), (8, 16)])
def test_stages_follow_each_other_as_1f1b(pipeline, many):
    seconds = 72e-3 / pipeline
    ends = seconds + 3e-3
    slowest = ends
    whole = (pipeline - 2) * seconds + 2 * ends + (many - 1) * slowest
    assert Job(stages(pipeline), many).seconds(PLAIN) == pytest.approx(whole)


def test_a_host_that_is_slower_decides_and_some_of_the_shorter_one_shows():
    slow = stages(host_s=10e-3)  # 20 ms of host for each of ten pieces
    assert Job(slow, 3).seconds(PLAIN) == pytest.approx(3 * 200e-3)
    assert Job(slow, 3).seconds(replace(PLAIN, unhidden=0.25)) == pytest.approx(3 * (200e-3 + 0.25 * 78e-3))
    assert Job(slow, 3).seconds(replace(PLAIN, host=0.1)) == pytest.approx(3 * 78e-3)


def test_tensor_ranks_exchange_in_every_block_and_links_may_be_slower():
    alone, divided = Job(stages(), 2), Job(stages(tensor=4), 2)
    links = divided.stages.links
    each = links.seconds(Exchange("all_reduce", 10**6), range(4), PLAIN)
    assert divided.seconds(PLAIN) - alone.seconds(PLAIN) == pytest.approx(2 * 8 * 4 * each)
    start_s = links.topology.start_up_s("all_reduce", range(4))
    slower = links.seconds(Exchange("all_reduce", 10**6), range(4), replace(PLAIN, inside=0.5))
    assert slower == pytest.approx(start_s + 2 * (each - start_s))


def test_replicas_add_up_the_gradients_of_the_heaviest_stage_once():
    own = replace(stages(2, data=2), block_parameters=10**6, embedding_parameters=5 * 10**6, tied_parameters=10**6)
    links = own.links
    replicas = links.seconds(Exchange("all_reduce", 2 * 9 * 10**6), range(2), PLAIN)
    ends = links.seconds(Exchange("all_reduce", 2 * 10**6), range(0, 4, 2), PLAIN)
    assert Job(own, 3).parts(PLAIN)["gradients"] == pytest.approx(replicas + ends)


def test_factors_are_found_again_and_unseen_ones_keep_their_values():
    jobs = [Job(stages(one, host_s=host_s), many) for one in (1, 2) for host_s in (1e-4, 2e-2) for many in (2, 8)]
    known = replace(Factors(), compute=1.3, host=1.7)

    def seconds(factors: Factors) -> np.ndarray:
        return np.array([one.seconds(factors) for one in jobs])

    found = fitted(seconds, seconds(known), ("compute", "host", "between"))
    assert found.compute == pytest.approx(1.3, rel=0.02) and found.host == pytest.approx(1.7, rel=0.02)
    assert found.between == pytest.approx(Factors().between)


def test_baselines_and_folds_see_no_judged_row():
    amounts, seen = np.array([1.0, 2.0, 4.0, 8.0]), np.array([True, True, True, False])
    measured = np.array([2.0, 4.0, 8.0, 999.0])
    assert of_one(amounts, measured, seen)[3] == pytest.approx(16.0)
    assert of_terms(np.stack([amounts, np.ones(4)], axis=1), measured, seen) == pytest.approx([2, 4, 8, 16])

    def mean(fit: np.ndarray, asked: np.ndarray) -> np.ndarray:
        return np.full(int(asked.sum()), measured[fit].mean())

    seconds, places = out_of_fold("aabb", seen, mean)
    assert dict(zip(places.tolist(), seconds.tolist(), strict=True)) == {0: 8.0, 1: 8.0, 2: 3.0}


def test_an_interval_and_a_choice_of_plans():
    predicted, measured = np.ones(11), np.linspace(0.5, 1.5, 11)
    assert Interval.of(predicted, measured) == pytest.approx(Interval(0.6, 1.4))
    assert Interval(0.6, 1.4).covered(predicted, measured) == pytest.approx(100 * 9 / 11)
    found = Choice.of("aabbc", np.array([1.0, 2.0, 2.0, 1.0, 1.0]), np.array([1.0, 2.0, 1.0, 1.04, 9.0]))
    assert found.cells == ["2", "50", "100", "2.0"]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=6), st.integers(0, 5), st.integers(1, 4))
def test_runs_add_up_to_the_run_of_all_their_ops(ops, cut, many):
    host_s, device_s = np.array(ops).T
    parts = Run.of(host_s[:cut], device_s[:cut]) + Run.of(host_s[cut:], device_s[cut:])
    assert parts == pytest.approx(Run.of(host_s, device_s))
    again = Run.of(np.tile(host_s, many), np.tile(device_s, many))
    assert Run.of(host_s, device_s).times(many) == pytest.approx(again)
    dispatched_s = free_s = 0.0  # the device runs an op once it was dispatched and the one before has ended
    for host, device in ops:
        dispatched_s += host
        free_s = max(dispatched_s, free_s) + device
    assert Run.of(host_s, device_s).whole_s == pytest.approx(free_s)


def test_nanotron_gives_stages_blocks_by_what_they_compute():
    """A head of four blocks' operations: the last stage has none, and the first has the block beyond its share."""
    small = Shape(2048, 32, 16, 4096, 131072, 8192)
    assert [blocks_of(small, stages) for stages in (1, 2, 4)] == [(16,), (11, 5), (6, 5, 5, 0)]
    large = Shape(4096, 32, 32, 4096, 131072, 14336)
    assert all(sum(blocks_of(large, stages)) == 32 for stages in (1, 2, 4, 8, 16, 32))
    assert blocks_of(large, 2) == (18, 14)


def test_ranks_of_a_sequence_share_what_is_between_rows_and_columns():
    shape = Shape(256, 8, 0, 2048, 1024, 512)
    whole, shared = nanotron_jobs.pieces(shape, False, 1, 16), nanotron_jobs.pieces(shape, False, 4, 16)
    for name in (BLOCK, HEAD):
        one, four = whole.each[name], shared.each[name]
        assert len(one.forward.device_s) == len(four.forward.device_s)
        assert four.forward.device_s.sum() < 0.45 * one.forward.device_s.sum()
    size = 2 * 16 * 2048 * 256
    assert [(one.kind, one.bytes) for one in shared.each[BLOCK].forward.exchanges] == [
        ("all_gather", size), ("reduce_scatter", size), ("all_gather", size), ("reduce_scatter", size)
    ]  # fmt: skip


def test_numbers_change_as_little_as_an_order_asks():
    order = np.array([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]])  # rising
    found = nearest_in_order(np.array([1.0, 3.0, 2.0]), np.array([1.0, 1.0, 5.0]), order)
    assert found == pytest.approx([1.0, 2.0, 2.0])
    assert nearest_in_order(np.array([1.0, 2.0, 3.0]), np.ones(3), order) == pytest.approx([1.0, 2.0, 3.0])


def test_factors_of_kinds_are_of_rows_that_are_seen():
    """Three rows of one kind, of which two are seen and take twice as long, and one of another that nobody saw."""
    shape = TransformerShape(12, 1024, 16, 4096, 50257, 1024, positions=1024)
    rows = tuple(Row(shape, 4, micro, 8, 1, 4, 1, 0.0) for micro in (1, 1, 1, 2))
    kinds = Kinds(rows, np.array([2.0, 4.0, 9.0, 5.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    seen = np.array([True, True, False, False])
    drawn = 2 ** (2 / 3)  # by one row that was predicted right
    assert kinds.known(seen) == pytest.approx([drawn, 2 * drawn, 3 * drawn, 4.0])
    assert kinds.known(seen, drawn=0) == pytest.approx([2.0, 4.0, 6.0, 4.0])
    assert kinds.left_out(np.array([0, 0, 1, 1]))[2:] == pytest.approx([3 * drawn, 4.0])
