"""Nodes of several kinds: what they exchange takes as long as among nodes of the slowest of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdmpp.collectives import cluster as clusters
from cdmpp.collectives import unlike_cluster
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.unlike_topology import unlike_topology
from cdmpp.errors import CdmppError, UsageError

TEXT = """
name: lab
title: A lab
documents: {}
devices_per_node: 4
adapters_per_node: 1
kinds:
  - {device: a100, nodes: 2, inside: nvlink3, between: infiniband-hdr}
  - {device: titan, nodes: 2, inside: pcie3, between: ethernet-10g}
"""
MIB = 2**20


@pytest.fixture
def lab(tmp_path: Path) -> str:
    (tmp_path / "lab.yaml").write_text(TEXT)
    return str(tmp_path / "lab.yaml")


def seconds(topology, kind, members, n_bytes=64 * MIB):
    return topology.cost(Collective(kind, n_bytes, len(members), "nccl"), members).latency_s


def test_a_group_takes_what_nodes_of_its_slowest_device_take(lab):
    mixed = unlike_topology(("a100",) * 8 + ("titan",) * 8, lab)
    fast, slow = mixed.on("a100"), mixed.on("titan")
    assert (mixed.nodes, mixed.per_node, mixed.node_devices) == (4, 4, ("a100", "a100", "titan", "titan"))
    for kind, members in (("send_recv", (0, 4)), ("all_reduce", tuple(range(8))), ("all_reduce", (0, 1, 2, 3))):
        assert seconds(mixed, kind, members) == seconds(fast, kind, members)
    for kind, members in (("send_recv", (8, 12)), ("all_reduce", tuple(range(8, 16)))):
        assert seconds(mixed, kind, members) == seconds(slow, kind, members) > seconds(fast, kind, members)
    for kind, members in (("send_recv", (4, 8)), ("send_recv", (8, 4)), ("all_reduce", tuple(range(16)))):
        assert seconds(mixed, kind, members) == seconds(slow, kind, members)
    assert mixed.latency_s("send_recv", [MIB], (4, 8)) == pytest.approx(slow.latency_s("send_recv", [MIB], (4, 8)))


def test_links_carry_what_their_own_nodes_do_and_a_message_goes_at_the_slower_rate(lab):
    mixed = unlike_topology(("a100",) * 4 + ("titan",) * 4, lab)
    assert mixed.rates["node 0 adapter 0 out"] > mixed.rates["node 1 adapter 0 in"]
    assert mixed.rates["rank 0 out"] > mixed.rates["rank 4 out"]
    _, flow = mixed.message(0, 4, 64 * MIB)
    _, alike = mixed.on("titan").message(0, 4, 64 * MIB)
    assert flow.bytes == pytest.approx(alike.bytes)


def test_nodes_follow_the_ranks_and_equal_devices_give_an_ordinary_topology(lab):
    mixed = unlike_topology(("a100",) * 4 + ("titan",) * 4, lab)
    assert mixed.placed(("titan",) * 4 + ("a100",) * 4).node_devices == ("titan", "a100")
    assert seconds(mixed.placed(("titan",) * 4 + ("a100",) * 4), "all_reduce", (0, 1)) > seconds(
        mixed, "all_reduce", (0, 1)
    )
    with pytest.raises(CdmppError, match="ranks 0 to 3 share node 0 of lab, and stand on titan and a100"):
        mixed.placed(("titan", "a100") * 4)
    with pytest.raises(CdmppError, match="ranks stand on 8 of titan, and the job has 4 of a100, 4 of titan"):
        mixed.placed(("titan",) * 8)
    with pytest.raises(CdmppError, match="a plan must say where each rank stands"):
        mixed.placed(())
    like = unlike_topology(("titan",) * 8, lab)
    assert type(like).__name__ == "Topology" and like.placed(("titan",) * 8) is like
    assert seconds(like, "all_reduce", tuple(range(8))) == seconds(
        unlike_topology(("a100",) * 4 + ("titan",) * 4, lab).on("titan"), "all_reduce", tuple(range(8))
    )


def test_a_job_takes_as_many_devices_of_each_node(lab):
    assert unlike_topology(("a100",) * 6 + ("titan",) * 3, lab).per_node == 3
    with pytest.raises(CdmppError, match="16 ranks on a100 do not fit on cluster lab: with 4 on each node.*8 do"):
        unlike_topology(("a100",) * 16 + ("titan",) * 4, lab)
    with pytest.raises(CdmppError, match="cluster lab has no t4: its devices are a100, titan"):
        unlike_topology(("a100", "t4"), lab)


def test_on_one_link_all_devices_are_equal():
    topology = unlike_topology(("a100", "titan"), link="ethernet-10g")
    assert topology.placed(("titan", "a100")) is topology and topology.backend == "nccl"
    with pytest.raises(UsageError, match="a100 and mi300x take nccl and rccl: name one by --backend"):
        unlike_topology(("a100", "mi300x"), link="ethernet-10g")
    assert unlike_topology(("a100", "mi300x"), link="ethernet-10g", backend="nccl").ranks == 2


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("device: titan", "device: a100", "a100, a100: give each once"),
        (", between: ethernet-10g", "", "titan.between is missing"),
        ("nodes: 2, inside: pcie3", "nodes: 0, inside: pcie3", "titan.nodes is 0"),
        ("inside: pcie3", "insid: pcie3", "insid"),
        ("inside: pcie3", "inside: pcie33", "pcie3"),
        ("devices_per_node: 4", "devices_per_node: 4000", "joins at most"),
        ("kinds:", "kinds: 3\nother:", "other"),
    ],
)
def test_descriptions_that_cannot_be_are_refused(tmp_path, old, new, told):
    (tmp_path / "lab.yaml").write_text(TEXT.replace(old, new))
    with pytest.raises(CdmppError, match=told) as refused:
        unlike_cluster.get(str(tmp_path / "lab.yaml"))
    assert "lab.yaml" in str(refused.value)


def test_a_cluster_of_equal_nodes_may_be_a_file_and_one_of_unlike_nodes_needs_devices(lab):
    assert unlike_cluster.get("dgx-a100") is None
    with pytest.raises(CdmppError, match="nodes of several kinds.*--devices"):
        clusters.get(lab)
