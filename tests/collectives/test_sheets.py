"""Links and clusters: every shipped file is complete and sourced, wrong files and names are told apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cdmpp.collectives import cluster, interconnect
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.sheet_model import SheetModel
from cdmpp.errors import CdmppError

CONF = Path(__file__).resolve().parents[2] / "conf"
PROMISED = """
    nvlink1 nvlink2 nvlink3 nvlink4 nvlink5 nvlink3-bridge pcie3 pcie4 pcie5 infinity-fabric4 infiniband-edr
    infiniband-hdr infiniband-ndr roce-400g ethernet-1g ethernet-10g ethernet-25g ethernet-100g loopback
""".split()


def changed(tmp_path: Path, kind: str, name: str, **changes) -> Path:
    content = yaml.safe_load((CONF / kind / f"{name}.yaml").read_text()) | changes
    path = tmp_path / f"{name}.yaml"
    tmp_path.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not ...}))
    return path


def test_promised_links_are_described():
    assert set(PROMISED) <= set(interconnect.names())


@pytest.mark.parametrize("name", interconnect.names())
def test_every_number_of_a_link_has_a_source(name):
    link = interconnect.get(name)
    assert link.bandwidth_gbps > 0 and link.topology in interconnect.TOPOLOGIES
    assert all(link.sources[key] for key in ("bandwidth_gbps", "latency_s"))
    assert (link.latency_s is None) == link.sources["latency_s"].startswith("not published")
    assert link.alpha_beta().seconds(1e9) == pytest.approx((link.latency_s or 0) + 1 / link.bandwidth_gbps)


def test_devices_that_share_a_link_get_their_part_of_it():
    link = interconnect.get("infiniband-hdr")
    assert link.alpha_beta(4).beta_s == pytest.approx(4 * link.alpha_beta().beta_s)
    assert link.alpha_beta(0.5) == link.alpha_beta()  # two adapters do not speed one message up


@pytest.mark.parametrize("name", cluster.names())
def test_every_cluster_names_what_is_described(name):
    found = cluster.get(name)
    assert found.source and found.ranks == found.nodes * found.devices_per_node
    assert found.nodes_of(found.ranks) == found.nodes and found.nodes_of(1) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"device": "xeon-icelake"},
            "field inside is nvlink3, which joins no CPUs as xeon-icelake: name a link of gloo",
        ),
        ({"devices_per_node": 17}, "field devices_per_node is 17, and nvlink3 joins at most 16"),
    ],
)
def test_devices_that_a_link_does_not_join_are_refused(tmp_path, changes, said):
    with pytest.raises(CdmppError, match=said):
        cluster.read_cluster(changed(tmp_path, "cluster", "dgx-a100", **changes))


def test_a_back_end_twice_and_a_number_that_is_text_are_told(tmp_path):
    path = changed(tmp_path, "interconnect", "pcie3", backends=["nccl", "nccl"])
    with pytest.raises(CdmppError, match="field backends says 'nccl' twice"):
        interconnect.read_interconnect(path)
    for name, written in (("text", "'1e-6'"), ("number", "1e-6")):
        path = changed(tmp_path / name, "interconnect", "pcie3")
        sheet = yaml.safe_load(path.read_text())
        text = yaml.safe_dump({**sheet, "latency_s": {**sheet["latency_s"], "value": "LATENCY"}})
        path.write_text(text.replace("LATENCY", written))
        if name == "number":
            assert interconnect.read_interconnect(path).latency_s == 1e-6
            continue
        with pytest.raises(CdmppError, match="latency_s.value is '1e-6', .* write numbers as 1.0e-6"):
            interconnect.read_interconnect(path)


def test_wrong_names_and_numbers_are_told(tmp_path):
    with pytest.raises(CdmppError, match=r"unknown link 'nvlnk4'; nearest: nvlink4"):
        interconnect.get("nvlnk4")
    with pytest.raises(CdmppError, match=r"unknown cluster 'dgxa100'; nearest: dgx-a100"):
        cluster.get("dgxa100")
    with pytest.raises(CdmppError, match=r"field topology is 'star'; one of switch"):
        interconnect.read_interconnect(changed(tmp_path, "interconnect", "pcie3", topology="star"))
    nothing = {"value": None, "unit": "GB/s", "source": "not published"}
    for key, value, message in (
        ("backends", ["mpi"], "field unknown back end 'mpi'; "),
        ("joins", {"value": 1.5, "unit": "1", "source": "pcisig"}, "field joins is 1.5: expected a whole number"),
        (
            "bandwidth_gbps",
            {"value": 31500, "unit": "GB/s", "source": "pcisig"},
            "bandwidth_gbps is 31500.0: expected a number from 0.01 to 8192 .GB/s.. Check the units",
        ),
        (
            "latency_s",
            {"value": 1.5, "unit": "s", "source": "nccl"},
            "latency_s is 1.5: expected a number from 1e-08 to 0.1 .s.",
        ),
    ):
        with pytest.raises(CdmppError, match=message):
            interconnect.read_interconnect(changed(tmp_path / key, "interconnect", "pcie4", **{key: value}))
    with pytest.raises(CdmppError, match="bandwidth_gbps is None"):
        interconnect.read_interconnect(changed(tmp_path, "interconnect", "pcie4", bandwidth_gbps=nothing))
    with pytest.raises(CdmppError, match=r"field inside: unknown link 'nvlink'; nearest"):
        cluster.read_cluster(changed(tmp_path, "cluster", "dgx-a100", inside="nvlink"))
    with pytest.raises(CdmppError, match=r"field device: unknown device"):
        cluster.read_cluster(changed(tmp_path, "cluster", "dgx-h100", device="h1000"))
    with pytest.raises(CdmppError, match=r"nodes is 0: expected a whole number"):
        cluster.read_cluster(changed(tmp_path, "cluster", "dgx-b200", nodes=0))
    with pytest.raises(CdmppError, match=r"between must name the link"):
        cluster.read_cluster(changed(tmp_path, "cluster", "dgx1-v100", between=...))
    with pytest.raises(CdmppError, match="17 ranks do not fit"):
        cluster.get("dgx-a100").nodes_of(17)
    with pytest.raises(CdmppError, match="9 ranks fill 2 nodes of 8 devices unevenly"):
        cluster.get("dgx-a100").nodes_of(9)


def test_a_link_of_which_somebody_published_what_collectives_reach_is_as_fast():
    link = interconnect.get("roce-400g")
    assert link.reached_gbps == pytest.approx(47, rel=1e-3)
    asked = Collective("all_gather", 10**10, 16, "nccl")
    assert 15 / 16 * 10**10 / SheetModel().seconds(asked, link) == pytest.approx(47e9, rel=1e-2)


def test_a_link_reaches_no_more_than_its_rate(tmp_path):
    entry = {"value": 51.0, "unit": "GB/s", "source": "tests: a maintainer"}
    with pytest.raises(CdmppError, match="reached_gbps is 51: expected at most 50"):
        interconnect.read_interconnect(changed(tmp_path, "interconnect", "roce-400g", reached_gbps=entry))
