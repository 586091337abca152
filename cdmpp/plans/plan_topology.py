"""plan_topology: on what the ranks of a plan exchange, by the back end that its strategies take."""

from __future__ import annotations

from cdmpp.collectives import cluster as clusters
from cdmpp.collectives import interconnect
from cdmpp.collectives.machine_link import server_backend
from cdmpp.collectives.topology import Topology, topology_of
from cdmpp.collectives.unlike_topology import unlike_topology
from cdmpp.devices import Device
from cdmpp.plans.plan import Plan
from cdmpp.plans.strategies.parameter_server import ParameterServer


def plan_topology(
    plan: Plan, device: str | Device, cluster: str | None = None, link: str | None = None, backend: str | None = None,
    can_grow: bool = False,
) -> Topology:  # fmt: skip
    """Return what ``topology_of`` does for the ranks of a plan; servers talk over TCP by gloo where the links carry it.

    Ranks of a plan that names devices stand on them, whatever ``device`` is. A plan with parameter servers takes the
    same link as machines and jobs with servers do. ``backend``: in place of that.

    Raises:
        CdmppError: as of ``topology_of``.
    """
    if backend is None and any(isinstance(one, ParameterServer) for one in plan.strategies):
        backend = place_backend(cluster, link, plan.ranks)
    if plan.devices:
        return unlike_topology(plan.devices, cluster, link, backend)
    return topology_of(plan.ranks, device, cluster, link, backend, can_grow)


def place_backend(cluster: str | None, link: str | None, ranks: int) -> str | None:
    """Return what moves parameters between so many ranks and servers; None: what fits the device.

    Raises:
        CdmppError: no such cluster or link.
    """
    if link is not None:
        return server_backend() if link.endswith(".csv") else server_backend(interconnect.get(link))
    if cluster is None:
        return None
    nodes = clusters.get(cluster)
    is_one_node = ranks <= nodes.devices_per_node or nodes.between is None
    return server_backend(nodes.inside, *(() if is_one_node or nodes.between is None else (nodes.between,)))
