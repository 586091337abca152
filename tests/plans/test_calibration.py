"""Calibration on measured runs: what carries over to other plans."""

from __future__ import annotations

import pytest

from cdmpp.collectives.algorithms import around_nodes, ring
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted, topology_of
from cdmpp.errors import CdmppError, DataError
from cdmpp.plans import plan_on, save_plan
from cdmpp.plans.calibration import Calibration, Run, at_bandwidth, by_replay, calibrate, calibrate_by_replay, read_runs
from cdmpp.plans.sources.table import TableSource
from cdmpp.steps.from_layers import Layer

WIRE = AlphaBeta(10e-6, 1e-10)
GRADIENTS = 10**8


def predicted_s(run, calibration):
    """0.2 s of computing, and an all-reduce of 100 MB."""
    links = calibration.topology(fitted(WIRE, run.plan.ranks, "nccl"))
    return 0.2 * calibration.compute + links.whole(Collective("all_reduce", GRADIENTS, run.plan.ranks)).latency_s


def test_the_two_numbers_that_made_the_runs_are_found():
    truth = Calibration(1.3, 0.4)
    found = calibrate(
        [Run(plan_on(gpus), 32, predicted_s(Run(plan_on(gpus), 32, 1.0), truth)) for gpus in (1, 4, 8)], predicted_s
    )
    assert found.compute == pytest.approx(1.3) and found.bandwidth == pytest.approx(0.4)


def test_one_rank_says_nothing_of_links():
    found = calibrate([Run(plan_on(1), 32, 0.1)], predicted_s)
    assert found.compute == pytest.approx(0.5) and found.bandwidth == 1.0


def test_start_ups_stay_and_bytes_take_longer():
    slow = at_bandwidth(fitted(WIRE, 4, "nccl"), 0.5)
    asked = Collective("all_reduce", GRADIENTS, 4)
    # 6 steps of 10 us, and 1.5 times 100 MB at 10 GB/s, twice as long
    assert slow.whole(asked).latency_s == pytest.approx(60e-6 + 2 * 15e-3, rel=1e-6)
    assert slow.near_rate == pytest.approx(0.5e10)
    assert at_bandwidth(slow, 1.0) is slow


def test_links_between_nodes_slow_down_too():
    nominal = topology_of(16, "v100", "dgx1-v100")
    slow, message = at_bandwidth(nominal, 0.25), Collective("send_recv", 10**8, 2)
    least = nominal.far(Collective("send_recv", 1, 2)).latency_s
    assert slow.far(message).latency_s - least == pytest.approx(4 * (nominal.far(message).latency_s - least))
    assert slow.rates["node 0 adapter 0 out"] == pytest.approx(nominal.rates["node 0 adapter 0 out"] / 4)


@pytest.mark.parametrize("gpus", [8, 16])
def test_runs_on_one_node_say_nothing_of_links_between_nodes(gpus):
    source = TableSource([Layer("dense", 0.01, 0.02, GRADIENTS, 4 * GRADIENTS)])

    def links(ranks):
        return topology_of(ranks, "v100", "dgx1-v100")

    truth = Calibration(bandwidth=0.5)
    measured_s = by_replay(source, links)(Run(plan_on(gpus), gpus, 1.0), truth)
    runs = [Run(plan_on(gpus), gpus, measured_s)]
    found, nominal = calibrate_by_replay(runs, source, links), links(16)
    assert found.bandwidth == pytest.approx(0.5, rel=0.01)
    slow, message = found.topology(nominal), Collective("send_recv", 10**8, 2)
    assert slow.near_rate == pytest.approx(0.5 * nominal.near_rate, rel=0.01)
    far = slow.far(message).latency_s / nominal.far(message).latency_s
    assert far == pytest.approx(1.0 if gpus == 8 else 2.0, rel=0.02)
    assert slow.far_rate / nominal.far_rate == pytest.approx(1.0 if gpus == 8 else 0.5, rel=0.01)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.1, "less than with four times"), (1e4, "more than with a thousandth")]
)
def test_runs_that_no_bandwidth_explains_are_refused(seconds, said):
    with pytest.raises(CdmppError, match=said):
        calibrate([Run(plan_on(8), 32, seconds)], predicted_s)


def test_no_runs_and_no_seconds_are_refused():
    with pytest.raises(CdmppError, match="no runs"):
        calibrate([], predicted_s)
    for batch, seconds in ((32, float("nan")), (32, 0.0), (0, 1.0)):
        with pytest.raises(CdmppError, match="run"):
            Run(plan_on(2), batch, seconds)


def test_runs_are_read_from_a_file(tmp_path):
    save_plan(plan_on(8), tmp_path / "eight.yaml")
    (tmp_path / "runs.csv").write_text("plan,global_batch,seconds\neight.yaml,64,0.25\n")
    assert read_runs(tmp_path / "runs.csv") == (Run(plan_on(8), 64, 0.25),)
    for line, told in (
        ("eight.yaml,64,fast", r"column seconds: 'fast' is given, expected a number above 0 to 1000000000 \(s\)$"),
        ("eight.yaml,64,-1.0", r"column seconds: '-1\.0' is given, expected a number above 0"),
        (
            "eight.yaml,64.5,0.25",
            r"column global_batch: '64\.5' is given, expected a whole number from 1 to 2147483648",
        ),
        ("eight.yaml,64", "column seconds: '' is given, expected a number"),
        (",64,0.25", "column plan is empty: expected the path of a plan"),
        ("none.yaml,64,0.25", r": .*none\.yaml"),
    ):
        (tmp_path / "runs.csv").write_text(f"plan,global_batch,seconds\neight.yaml,64,0.25\n{line}\n")
        with pytest.raises(DataError, match=f"runs.csv, line 3,? ?{told}"):
            read_runs(tmp_path / "runs.csv")
    (tmp_path / "runs.csv").write_text("plan,global_batch,seconds\neight.yaml,64,0.25\neight.yaml,63,0.25\n")
    with pytest.raises(DataError, match="line 3: a global batch of 63 does not divide into 8 equal parts"):
        read_runs(tmp_path / "runs.csv")
    (tmp_path / "runs.csv").write_text("plan\neight.yaml\n")
    with pytest.raises(DataError, match="plan,global_batch,seconds"):
        read_runs(tmp_path / "runs.csv")


def test_a_ring_around_nodes_adds_up_both_start_ups():
    inside, between = AlphaBeta(1e-6, 1e-11), AlphaBeta(9e-6, 1e-10)
    hop = around_nodes(inside, between, 8, 2)
    assert hop == AlphaBeta(pytest.approx(3e-6), 1e-10)  # 2 of 8 hops leave a node
    assert around_nodes(inside, between, 4, 1) == inside
    assert ring(Collective("all_reduce", 800, 8), hop) == pytest.approx(14 * (3e-6 + 100 * 1e-10))
    with pytest.raises(CdmppError, match="evenly"):
        around_nodes(inside, between, 8, 3)


def test_runs_are_predicted_by_replay_of_a_scaled_source():
    layers = [Layer(name, 0.01, 0.02, 10**6, 4 * 10**6) for name in ("first", "second")]
    source, links = TableSource(layers), lambda ranks: fitted(WIRE, ranks, "nccl")
    predicted = by_replay(source, links)
    alone = Run(plan_on(1), 1, 0.06)
    assert predicted(alone, Calibration()) == pytest.approx(0.06)
    assert predicted(alone, Calibration(compute=2.0)) == pytest.approx(0.12)
    truth = Calibration(1.5, 0.2)
    runs = [Run(plan_on(ranks), ranks, 1.0) for ranks in (1, 4)]
    measured = [Run(one.plan, one.global_batch, predicted(one, truth)) for one in runs]
    assert measured[1].iteration_s > measured[0].iteration_s
    found = calibrate(measured, predicted)
    assert found.compute == pytest.approx(1.5) and found.bandwidth == pytest.approx(0.2, rel=1e-3)
