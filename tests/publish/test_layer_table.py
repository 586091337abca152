"""ParaDL's closed forms of a network of three layers, by hand, beside the oracle's; its printed figures."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.plans.layer_table import Layer, LayerTable, columns, judge
from benchmarks.plans.paradl_hybrids import TRAINED_ON, accuracy, predicted
from benchmarks.plans.paradl_printed import counts
from benchmarks.plans.paradl_spatial import Parts, Way, parts, ways
from cdmpp.collectives.fitted_nodes import fitted_nodes
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted

A, B = 1e-5, 1e-9
"""Start-up, seconds a byte."""
BOTH = frozenset({"filter", "space"})
TABLE = LayerTable(
    (
        Layer("conv1", 3000, 800, 8000, 2e-3, (3, 20, 50), (3, 3), BOTH),
        Layer("relu", 8000, 0, 8000, 1e-3),
        Layer("fc", 8000, 16000, 100, 3e-3),
    )
)
"""Of one example: 2 ms that are divided, 4 ms that are not; 16,800 weights; a halo of 3 x 50 items."""
BATCH = 8
FOLDERS = [Path(one) / "paradl" for one in os.environ.get("CDMPP_DATA", "").split(os.pathsep) if one]
DATA = next((one for one in FOLDERS if one.is_dir()), None)


def _costs(split, inside, replicas, batch, many=1, table=TABLE):
    found = judge(table).closed_form(
        columns(split, inside, replicas, batch, many), fitted(AlphaBeta(A, B), inside * replicas, "nccl")
    )
    return {name: float(values[0]) for name, values in found.communication_s.items()}, found


def test_data_parallel():
    sent, found = _costs("", 1, 4, 4 * BATCH)
    assert found.compute_s[0] == pytest.approx(BATCH * 6e-3)
    assert sent["gradients"] == pytest.approx(2 * 3 * (A + 16800 / 4 * 4 * B))
    assert found.memory_bytes[0] == 2 * 4 * (BATCH * (3000 + 8000 + 8000 + 100) + 16800)


@pytest.mark.parametrize("split", ["filter", "channel"])
def test_filter_and_channel(split):
    sent, found = _costs(split, 4, 1, BATCH)
    assert found.compute_s[0] == pytest.approx(BATCH * (2e-3 / 4 + 4e-3))
    assert sent["split operators"] == pytest.approx(3 * 3 * (A + BATCH * 8000 / 4 * 4 * B))
    assert found.memory_bytes[0] == 2 * 4 * (BATCH * (3000 + 8000 + 8000 + 100) + 800 / 4 + 16000)
    twice = _costs(split, 4, 1, BATCH, table=replace(TABLE, squares=True))[1]
    assert twice.memory_bytes[0] == 2 * 4 * (BATCH * (3000 + 8000 + 8000 + 100) + 800 / 16 + 16000 / 4)


def test_spatial():
    sent, found = _costs("spatial", 4, 1, BATCH)
    assert found.compute_s[0] == pytest.approx(BATCH * (2e-3 / 4 + 4e-3))
    assert sent["halos"] == pytest.approx(2 * 2 * (A + BATCH * 150 * 4 * B))
    assert sent["gradients"] == pytest.approx(2 * 3 * (A + 16800 / 4 * 4 * B))
    assert found.memory_bytes[0] == 2 * 4 * (BATCH * (3000 / 4 + 8000 / 4 + 8000 + 100) + 16800)


def test_poolings_have_halos_of_half_a_kernel():
    pool = Layer("pool", 3000, 0, 750, 1e-3, (3, 20, 50), (2, 2), frozenset({"space"}))
    assert pool.halo_items == 1 * 3 * 50
    assert replace(pool, kernel=(7, 7)).halo_items == 3 * 3 * 50


def test_what_spatial_and_data_exchange():
    own = parts(TABLE, BATCH, 16)
    start_s, weights = 3.00011e-3, 4 * 16800
    halos_s = 4 * (start_s + BATCH * 150 * 4 * 8 / 16e9)
    gathers_s = 2 * 3 * (start_s + BATCH * 8000 * 4 / 4 * 2 / 16e9)
    assert own.inside_s == pytest.approx(halos_s + gathers_s + 6 * (9e-6 + weights / 4 / 50e9))
    assert own.steps == 6
    assert own.start_s == pytest.approx(6 * 30.31e-6)
    assert own.bytes_s == pytest.approx(6 / 4 * weights / 12.5e9)


@pytest.mark.parametrize("name", list(ways(0.5)))
def test_each_way_finds_the_factors_of_made_up_rows(name):
    way = ways(0.5)[name]
    own = [Parts(0.3 + 0.01 * n**0.5, n - 1, 3e-5 * (n - 1), 0.1 * (n - 1) / n) for n in (8, 16, 32, 64, 128)]
    factors = np.array([1.7, 2.5])[: len(way.columns(own[0])[0])]
    measured = [way.predicted_s(factors, one) for one in own]
    assert way.fitted(own, measured) == pytest.approx(factors)
    assert way.left_out_error(own, measured) == pytest.approx(0.0, abs=1e-9)
    assert way.left_out_error(own, [1.5 * measured[0], *measured[1:]]) > 0.05


def test_a_way_leaves_the_rest_to_the_links():
    own = Parts(0.3, 7, 0.01, 0.1)
    assert Way(inside=True, share=0.5).columns(own) == ([0.3], pytest.approx(0.21))
    assert Way(start=True).columns(own) == ([7, 0.1], pytest.approx(0.3))


@pytest.mark.skipif(DATA is None, reason="no folder of CDMPP_DATA has paradl")
def test_hybrids_of_the_other_network():
    found = [accuracy(s, one.total_s) for one, s in predicted(DATA) if one.is_hybrid and one.model != TRAINED_ON]
    assert len(found) == 4
    assert np.mean(found) >= 0.8


def test_data_and_filter_on_nodes():
    links = fitted_nodes(AlphaBeta(A, B), AlphaBeta(3 * A, 10 * B), 8, 2)
    found = judge(TABLE).closed_form(columns("filter", 4, 2, 2 * BATCH), links)
    sent = {name: float(values[0]) for name, values in found.communication_s.items()}
    assert sent["split operators"] == pytest.approx(3 * 3 * (A + BATCH * 8000 / 4 * 4 * B))
    # four groups of two share the one adapter of a node
    assert sent["gradients"] == pytest.approx(2 * (3 * A + (200 + 16000) / 2 * 4 * 4 * 10 * B))


def test_pipeline():
    sent, found = _costs("pp", 2, 1, BATCH, 4, replace(TABLE, frees=True))
    # conv1 and relu take as long as fc; two examples at a time
    assert found.compute_s[0] == pytest.approx(BATCH * 3e-3)
    assert found.compute_s[0] + found.bubble_s[0] >= BATCH * 3e-3 * (4 + 1) / 4
    assert sent["stages"] > 0


@pytest.mark.skipif(DATA is None, reason="no folder of CDMPP_DATA has paradl")
def test_printed_projections_are_reproduced_to_every_digit():
    seen, alike, others = counts(DATA)
    assert sum(seen.values()) == 801
    wrong = {(one.case, name) for one, name, _ in others}
    assert wrong <= {("ds", "communication"), ("spatial", "communication"), ("ds", "compute")}
    assert sum(alike.values()) >= 741
    assert all(abs(ratio - 1) < 1e-11 for one, name, ratio in others if name == "compute")
