"""Alpa's Wide-ResNets: which plan is taken, and what the fits find."""

from __future__ import annotations

import pytest

from benchmarks.plans.alpa_latency import (
    MICRO_BATCHES,
    calibrated,
    measured_s,
    one_after_the_other_s,
    precedence,
    recomputing,
    say,
    source,
)
from benchmarks.plans.alpa_rows import NETWORKS, Row
from benchmarks.plans.alpa_solutions import DATA, Stage, published
from benchmarks.plans.alpa_stages import Stages, searched
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted
from cdmpp.plans.calibration import Calibration
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.source import RankWork, StepSource
from cdmpp.steps.from_layers import Layer, graph_of_layers


def test_the_fastest_plan_that_fits_or_the_one_that_holds_least():
    plans = {"fast": (1.0, 30.0), "fits": (3.0, 9.0), "fits and is slow": (4.0, 2.0), "holds less": (2.0, 20.0)}
    keys = {name: precedence(step_s, held, 10.0) for name, (step_s, held) in plans.items()}
    assert min(keys, key=keys.__getitem__) == "fits"
    del keys["fits"], keys["fits and is slow"]
    assert min(keys, key=keys.__getitem__) == "holds less"
    assert precedence(1.0, 30.0, float("inf")) < precedence(3.0, 9.0, float("inf"))


def test_stages_one_after_the_other():
    row = Row("e2e", 1, "inter_only", 0.0, 0.0, 8.3, False)
    ops = source(NETWORKS[1]).work(64, ParallelDegrees()).rank.ops
    forward_s, backward_s = (sum(op.duration_s for op in ops if op.phase == phase) for phase in ("forward", "backward"))
    assert one_after_the_other_s(row, Calibration(compute=2.0)) == pytest.approx(
        24 * 2.0 * (2 * forward_s + backward_s), rel=1e-6
    )


def test_a_fit_finds_the_factor_of_one_gpu():
    ops = source(NETWORKS[1]).work(32, ParallelDegrees()).rank.ops
    alone_s = sum(op.duration_s for op in ops)
    row = Row("intra-op-ablation", 1, "data_parallel", 0.0, 3.0 * alone_s, 8.3, False)
    found = calibrated((row,))
    assert found.compute == pytest.approx(3.0, rel=0.02)
    assert not found.holds_between_nodes


def test_what_runs_the_forward_pass_again_has_a_factor_of_its_own():
    alone_s = sum(op.duration_s for op in source(NETWORKS[1]).work(32, ParallelDegrees()).rank.ops)
    rows = (
        Row("intra-op-ablation", 1, "data_parallel", 0.0, 3.0 * alone_s, 8.3, False),
        Row("e2e", 1, "auto", 0.0, 0.0, 4.0, False),
        Row("e2e", 16, "auto", 0.0, 0.0, 1.0, False),
    )
    found = calibrated(rows)
    assert say(rows[1], found, recomputing(rows)).step_s == pytest.approx(measured_s(rows[1]))
    assert say(rows[0], found, recomputing(rows)) == say(rows[0], found)


class Layered(StepSource):
    """A stem, four layers and a head; layers take 1 ms an example forward and 2 backward, the last one twice that."""

    def work(self, batch, degrees, strategies=()):
        seconds = (0.0, 1e-3, 1e-3, 1e-3, 2e-3, 0.0)
        layers = [
            Layer(f"{i}", one * batch / degrees.filter, 2 * one * batch / degrees.filter, 4_000, 1_000 * batch)
            for i, one in enumerate(seconds)
        ]
        return RankWork(graph_of_layers(layers).ranks[0])

    def limits(self):
        return {"pp": 6}


def stages(many=4, micro_batch=8):
    """On links that take no time."""
    return Stages(Layered(), fitted(AlphaBeta(0.0, 1e-18), 8, "nccl"), micro_batch, many)


def test_stages_of_unequal_numbers_of_gpus_take_the_slots_of_the_slowest():
    both = (Stage(0, 2, 2, DATA), Stage(2, 4, 4, DATA))
    slots = [2 * 4 * 4e-3, 3 * 2 * 4e-3]  # layers x examples of a GPU x (forward, forward again, backward)
    assert stages().step_s(both) == pytest.approx(3 * max(slots) + sum(slots))
    assert stages().cost(both[0], 2).slot_s == pytest.approx(slots[0])


def test_the_search_finds_the_best_of_all_cuts_and_sizes():
    pricing, found = stages(16), []
    for cut in (1, 2, 3):
        for size in (1, 2):
            found.append((Stage(0, cut, size, DATA), Stage(cut, 4, 3 - size, DATA)))
    whole = searched(pricing, 16, 3, DATA, cuts=range(5), sizes=(1, 2))
    assert len(whole) == 2
    assert pricing.step_s(whole) <= min(map(pricing.step_s, found)) * (1 + 1e-9)
    assert searched(pricing, 16, 4, DATA, cuts=(0, 2, 4), sizes=(1, 2), merges=False) == (
        Stage(0, 2, 2, DATA),
        Stage(2, 4, 2, DATA),
    )
    assert searched(pricing, 16, 5, DATA, cuts=(0, 4), sizes=(4,)) is None


@pytest.mark.parametrize("method", ["auto", "inter_only", "ppdp"])
@pytest.mark.parametrize("gpus", [1, 2, 4, 8, 16, 32, 64])
def test_published_stages_hold_all_blocks_and_all_gpus(method, gpus):
    row = Row("e2e", gpus, method, 0.0, 0.0, 8.0, False)
    found = published(row)
    if found is None:
        assert method != "auto"
        return
    assert [0, *(one.end for one in found)] == [*(one.first for one in found), 33 if gpus == 64 else 16]
    assert sum(one.gpus for one in found) == gpus
    assert row.batch % MICRO_BATCHES[method][gpus] == 0


def test_auto_on_64_gpus_trained_another_network():
    auto, alone = (Row("e2e", 64, name, 0.0, 0.0, 1.0, False) for name in ("auto", "intra_only"))
    assert (auto.network, auto.batch) == ((101, 320, 16), 1520)
    assert (alone.network, alone.batch) == ((50, 320, 32), 1536)
