"""Ranks of a plan with parameter servers exchange over the link that all questions about servers take."""

import pytest

from cdmpp.collectives import cluster
from cdmpp.collectives.machine_link import machine_link
from cdmpp.collectives.topology import on_cluster
from cdmpp.errors import CdmppError
from cdmpp.plans.plan import plan_on
from cdmpp.plans.plan_topology import plan_topology


@pytest.mark.parametrize("link", ["ethernet-10g", "ethernet-25g", "infiniband-hdr"])
def test_servers_of_a_step_have_the_link_of_servers_that_are_machines(link):
    assert plan_topology(plan_on(2, "ps"), "h100", link=link).wire(0, 1) == machine_link(link)


@pytest.mark.parametrize(
    ("strategy", "device", "place", "backend"),
    [
        ("ps", "h100", {"link": "ethernet-25g"}, "gloo"),
        ("ddp", "h100", {"link": "ethernet-25g"}, "nccl"),
        ("ps", "h100", {"link": "ethernet-25g", "backend": "nccl"}, "nccl"),
        ("ps", "h100", {"link": "nvlink4"}, "nccl"),
        ("ps", "mi300x", {"link": "infiniband-hdr"}, "rccl"),
        ("ps", "mi300x", {"link": "ethernet-25g"}, "gloo"),
        ("ps", "h100", {"cluster": "dgx-h100"}, "nccl"),
        ("ps", "xeon-icelake", {"cluster": "cpus-ethernet"}, "gloo"),
    ],
)
def test_gloo_sends_to_servers_where_all_links_carry_it(strategy, device, place, backend):
    assert plan_topology(plan_on(4, strategy), device, **place).backend == backend


def test_messages_that_were_timed_are_those_of_servers(tmp_path):
    timed = tmp_path / "link.csv"
    timed.write_text("bytes,seconds\n1,1e-4\n1000000,10.1e-3\n100000000,1000.1e-3\n")
    found = plan_topology(plan_on(2, "ps"), "h100", link=str(timed))
    assert found.backend == "gloo" and found.wire(0, 1) == machine_link(str(timed))


def test_a_cluster_has_one_backend_for_both_its_links():
    """Between nodes of one CPU there is ethernet; a node of several GPUs has a link inside that gloo does not take."""
    found = plan_topology(plan_on(4, "ps"), "xeon-icelake", "cpus-ethernet")
    assert found.wire(0, 1) == on_cluster(cluster.get("cpus-ethernet"), 4, "gloo").wire(0, 1)
    assert plan_topology(plan_on(16, "ps"), "h100", "dgx-h100").backend == "nccl"


def test_an_unknown_place_is_refused_by_name():
    for place in ({"link": "ethernet"}, {"cluster": "dgx"}):
        with pytest.raises(CdmppError, match="nearest"):
            plan_topology(plan_on(2, "ps"), "h100", **place)
