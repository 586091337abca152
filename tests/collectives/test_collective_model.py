"""The collective model: monotone, honest about what it was not told, the same after saving."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdmpp.collectives import cluster, interconnect
from cdmpp.collectives.collective import BACKENDS, KINDS, Collective
from cdmpp.collectives.collective_model import SHIPPED, CollectiveModel, kept_curve, shipped
from cdmpp.collectives.collective_table import read_aiconfigurator
from cdmpp.collectives.curve import Curve
from cdmpp.collectives.rank_scaling import scaled_from_two
from cdmpp.collectives.sheet_model import SheetModel
from cdmpp.collectives.topology import on_cluster, on_link
from cdmpp.errors import CdmppError, DataError

SIZES = 2.0 ** np.arange(9, 30)
TRUTH = SheetModel(1e-5, 1.0, 0.8, 0.5)

LINKS = [name for name in interconnect.names() if interconnect.get(name).topology != "medium"]


def measured(kind: str, ranks: int, link: str = "nvlink3", system: str = "toy") -> Curve:
    seconds = [TRUTH.seconds(Collective(kind, int(size), ranks), interconnect.get(link)) for size in SIZES]
    noise = np.random.default_rng([ranks, len(kind)]).normal(0, 0.01, len(SIZES))
    return Curve(system, link, "nccl", kind, ranks, 1, SIZES, np.array(seconds) * np.exp(noise))


@pytest.fixture(scope="module")
def model() -> CollectiveModel:
    kinds = ("all_reduce", "all_gather")
    on = [measured(kind, ranks) for kind in kinds for ranks in (2, 4)]
    return CollectiveModel.fit([*on, *(measured("all_reduce", ranks, "pcie4", "cards") for ranks in (2, 4, 8))])


def test_measured_sizes_and_ranks_come_back(model):
    for ranks in (2, 4):
        told = [model.predict(Collective("all_reduce", int(size), ranks), "nvlink3").latency_s for size in SIZES]
        assert np.abs(told / measured("all_reduce", ranks).latency_s - 1).max() < 0.05
    found = model.predict(Collective("all_reduce", 3000, 4), "nvlink3")
    assert found.flags == () and found.low_s < found.latency_s < found.high_s and "toy" in found.source


def test_other_ranks_are_near_and_flagged(model):
    truth = measured("all_reduce", 8)
    told = [model.predict(Collective("all_reduce", int(size), 8), "nvlink3") for size in SIZES]
    assert np.mean(np.abs([a.latency_s for a in told] / truth.latency_s - 1)) < 0.12
    assert all("from 2 and 4" in one.flags[0] for one in told)


def test_permuted_measurements_fail():
    rng, right, wrong = np.random.default_rng(0), [], []
    two, four, eight = (measured("all_gather", ranks) for ranks in (2, 4, 8))
    for few, many, scores in (
        (two, four, right),
        (*(replace(c, latency_s=rng.permutation(c.latency_s)) for c in (two, four)), wrong),
    ):
        told = scaled_from_two(kept_curve(few), kept_curve(many), 8).at(SIZES)
        scores.append(np.mean(np.abs(told / eight.latency_s - 1)))
    assert right[0] < 0.12 < 1 < wrong[0]


def test_doubts_widen_the_interval(model):
    asked = Collective("all_reduce", 2**20, 4)
    inside = model.predict(asked, "nvlink3")
    for doubted, flag in (
        (model.predict(replace(asked, bytes=2**32), "nvlink3"), "outside what was measured"),
        (model.predict(replace(asked, ranks=8), "nvlink3"), "were not measured"),
        (model.predict(asked, "nvlink4"), "from its datasheet"),
        (model.predict(replace(asked, backend="rccl"), "infinity-fabric4"), "nobody published the latency"),
    ):
        assert any(flag in one for one in doubted.flags)
        assert doubted.high_s / doubted.low_s > inside.high_s / inside.low_s


@pytest.mark.parametrize(
    ("kind", "ranks"), [("all_reduce", 2), ("all_reduce", 8), ("all_gather", 2), ("all_gather", 8), ("send_recv", 2)]
)
def test_a_link_that_is_slower_by_its_sheet_is_not_faster_than_a_measured_one(kind, ranks):
    """PCI Express 3 was, by its datasheet, next to measured cards on version 4."""
    for size in 2 ** np.arange(10, 31, 4):
        slow, fast = (shipped().predict(Collective(kind, int(size), ranks), link) for link in ("pcie3", "pcie4"))
        assert slow.latency_s >= fast.latency_s
        if slow.latency_s == fast.latency_s:
            assert slow.source == f"datasheet of pcie3, no faster than {fast.source}"
            assert any("over pcie4, which is no slower by its datasheet" in flag for flag in slow.flags)


def test_a_sheet_that_says_slower_than_what_was_measured_answers(model):
    """Measured cards on PCI Express 4 follow their sheet here, so that version 3 is about half as fast by its own."""
    asked = Collective("all_reduce", 2**26, 4)
    slow, fast = (model.predict(asked, link) for link in ("pcie3", "pcie4"))
    assert slow.source == "datasheet of pcie3" and slow.latency_s > 1.5 * fast.latency_s


def test_a_link_that_several_share_is_not_faster_than_by_itself():
    for size in 2 ** np.arange(10, 31, 4):
        one = Collective("all_reduce", int(size), 4)
        alone, shared = (shipped().predict(one, "pcie4", shared_by=count).latency_s for count in (1.0, 1.01))
        assert shared >= alone


def test_a_bridge_joins_more_than_two_where_that_was_measured(model):
    asked = Collective("all_reduce", 2**20, 4)
    assert any("joins two devices" in flag for flag in shipped().predict(asked, "nvlink3-bridge").flags)
    with pytest.raises(CdmppError, match="4 ranks on nvlink3-bridge: it joins at most 2 devices"):
        model.predict(asked, "nvlink3-bridge")


def test_collectives_on_a_channel_that_all_share_are_refused():
    for ask in (
        lambda: shipped().predict(Collective("all_reduce", 2**20, 2, "gloo"), "wifi"),
        lambda: on_link("wifi", 2, "gloo"),
    ):
        with pytest.raises(
            CdmppError, match="wifi is one channel that all share, .*: collectives on it are not predic"
        ):
            ask()
    with pytest.raises(CdmppError) as told:
        shipped().predict(Collective("all_reduce", 2**20, 2, "gloo"), "nvlink4")
    assert "ethernet-1g" in str(told.value) and "wifi" not in str(told.value)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_back_end_and_link_is_answered_or_refused(backend, link):
    """gloo talks over TCP: over NVLink it was answered, and faster than NCCL was measured there."""
    on = interconnect.get(link)
    asked = Collective("all_reduce", 2**20, 2, backend)
    if backend in on.backends:
        assert shipped().predict(asked, link).latency_s > 0 and on_link(link, 2, backend).backend == backend
    else:
        for ask in (lambda: shipped().predict(asked, link), lambda: on_link(link, 2, backend)):
            with pytest.raises(CdmppError, match=f"{backend} does not send over {link}, which .* use: take one of"):
                ask()
    most = 4 if on.topology == "pair" else on.joins or 2**16
    with pytest.raises(CdmppError, match="ranks on .*: it joins at most|ranks is 65537"):
        shipped().predict(Collective("all_reduce", 2**20, most + 1, on.backends[0]), link)
    assert ("gloo" in on.backends) == link.startswith(("ethernet", "loopback"))


def test_a_cluster_whose_links_a_back_end_does_not_use_is_refused():
    for ranks in (8, 16):
        with pytest.raises(CdmppError, match="gloo does not send over nvlink4"):
            on_cluster(cluster.get("dgx-h100"), ranks, "gloo")
    with pytest.raises(CdmppError, match="rccl does not send over nvlink4"):
        on_cluster(cluster.get("dgx-h100"), 8, "rccl")


@given(
    st.sampled_from(list(KINDS)),
    st.integers(1, 2**33),
    st.integers(1, 2**33),
    st.sampled_from([1, 2, 3, 4, 6, 8, 16]),
    st.sampled_from(LINKS),
)
def test_more_bytes_never_take_less(kind, one, other, ranks, link):
    ranks = min(ranks, 2) if kind == "send_recv" else ranks
    on = interconnect.get(link)
    ranks = min(ranks, on.joins or ranks)
    for backend in sorted({"nccl", "rccl", "gloo"} & set(on.backends)):
        less, more = (shipped().predict(Collective(kind, size, ranks, backend), link) for size in sorted((one, other)))
        assert less.latency_s <= more.latency_s and np.isfinite(more.high_s)
        assert (less.latency_s == 0) == (ranks == 1)


@given(st.integers(1, 2**32), st.integers(1, 2**32), st.sampled_from([2, 8, 12, 16]))
def test_clusters_are_monotone_and_one_node_is_its_link(one, other, ranks):
    box = cluster.get("dgx-a100")
    less, more = (on_cluster(box, ranks).whole(Collective("all_reduce", size, ranks)) for size in sorted((one, other)))
    assert less.latency_s <= more.latency_s
    if ranks <= 8:
        assert more == shipped().predict(Collective("all_reduce", max(one, other), ranks), "nvlink3")


def test_gloo_scatters_as_it_reduces():
    scatter, reduce = (Collective(kind, 2**20, 4, "gloo") for kind in ("reduce_scatter", "all_reduce"))
    found = shipped().predict(scatter, "loopback")
    assert found.latency_s == shipped().predict(reduce, "loopback").latency_s
    assert "as an all_reduce" in found.flags[0]


def test_saved_and_loaded_it_answers_the_same(model, tmp_path):
    model.save(tmp_path / "model.json")
    again = CollectiveModel.load(tmp_path / "model.json")
    for ranks in (2, 4, 8):
        asked = Collective("all_reduce", 123_456, ranks)
        assert again.predict(asked, "nvlink3").latency_s == pytest.approx(
            model.predict(asked, "nvlink3").latency_s, rel=1e-3
        )
    again.save(tmp_path / "again.json")
    assert CollectiveModel.load(tmp_path / "again.json").spread == model.spread


def test_damaged_files_and_curves_are_refused(model, tmp_path):
    path = tmp_path / "model.json"
    with pytest.raises(DataError, match="no such file"):
        CollectiveModel.load(path)
    path.write_text('{"format": 99}')
    with pytest.raises(DataError, match="format 1"):
        CollectiveModel.load(path)
    model.save(path)
    content = json.loads(path.read_text())
    content["curves"][0]["latency_us"][0] = -1
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"model\.json is damaged"):
        CollectiveModel.load(path)
    with pytest.raises(DataError, match="two or more sizes"):
        Curve("toy", None, "nccl", "all_reduce", 2, 1, np.ones(1), np.ones(1))
    with pytest.raises(DataError, match="nothing to fit"):
        SheetModel.fit([])
    with pytest.raises(CdmppError, match="no all_reduce of nccl was measured on h100 over nvlink3; measured: toy"):
        model.predict(Collective("all_reduce", 8, 2), "nvlink3", system="h100")


def test_what_ships_is_small_and_fitted():
    assert SHIPPED.stat().st_size < 300_000
    assert {"a100_sxm", "h100_sxm", "b300_sxm", "b60"} <= {curve.system for curve in shipped().curves}
    assert sum(len(curve.bytes) for curve in shipped().curves) < 1500


def test_held_out_parts_of_the_real_tables():
    """Half of the sizes, and eight ranks, on tables that are not here in every checkout."""
    folders = [Path(folder) for folder in os.environ.get("CDMPP_DATA", "").split(os.pathsep) if folder]
    found = [path for folder in folders for path in folder.rglob("aiconfigurator/collectives.parquet")]
    if not found:
        pytest.skip("no aiconfigurator/collectives.parquet in $CDMPP_DATA")
    from benchmarks.collectives import held_out_count, held_out_sizes

    curves = read_aiconfigurator(found[0])
    assert all(np.mean(by["ours"]) <= 5 for by in held_out_sizes(curves).values())
    assert all(np.mean(by["ours"]) <= 12 for by in held_out_count(curves).values())
