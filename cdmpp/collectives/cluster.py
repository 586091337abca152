"""Cluster: which devices stand in how many nodes, and the links inside a node and between nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from cdmpp import devices
from cdmpp.collectives import interconnect
from cdmpp.collectives.collective import MOST_RANKS
from cdmpp.collectives.host import Host
from cdmpp.collectives.interconnect import Interconnect
from cdmpp.devices.sheet import read_sheet, sheet_file, sheet_files
from cdmpp.errors import CdmppError
from cdmpp.model.config import check_keys
from cdmpp.platform.content import read_yaml
from cdmpp.platform.limits import Limits, check_fields, fitting

_Sheet = TypeVar("_Sheet")
_OF_CPUS = frozenset({"gloo", "oneccl"})
"""The back ends between CPUs."""


@dataclass(frozen=True)
class Cluster:
    """A cluster has equal nodes of equal devices."""

    LIMITS: ClassVar = dict.fromkeys(("nodes", "devices_per_node", "adapters_per_node"), Limits(1, MOST_RANKS))

    name: str
    title: str
    device: str
    """A name that ``devices.get`` takes."""
    nodes: int
    devices_per_node: int
    inside: Interconnect
    """The link between devices of one node."""
    between: Interconnect | None
    """The link of one adapter to other nodes; None where there is one node."""
    adapters_per_node: int
    """The number of adapters a node has for ``between``; its devices share them evenly."""
    source: str
    """The document that tells so."""
    host: Host | None = None
    """The memory of a node; None where nothing describes it."""

    def __post_init__(self) -> None:
        check_fields(self, f"cluster {self.name!r:.60}: ")
        if devices.get(self.device).kind == "cpu" and _OF_CPUS.isdisjoint(self.inside.backends):
            raise CdmppError(
                f"cluster {self.name}: field inside is {self.inside.name}, which joins no CPUs as {self.device}: "
                f"name a link of {' or '.join(sorted(_OF_CPUS))}, such as loopback"
            )
        if self.inside.joins is not None and self.devices_per_node > self.inside.joins:
            raise CdmppError(
                f"cluster {self.name}: field devices_per_node is {self.devices_per_node}, and {self.inside.name} "
                f"joins at most {self.inside.joins}: take fewer, or another link inside"
            )
        if self.nodes > 1 and self.between is None:
            raise CdmppError(f"cluster {self.name} has {self.nodes} nodes: field between must name the link of them")

    @property
    def ranks(self) -> int:
        """The cluster has so many devices in all."""
        return self.nodes * self.devices_per_node

    def grown(self, ranks: int) -> Cluster:
        """Return a cluster of as many nodes of the same kind as so many ranks fill; this one where they fit.

        ``CdmppError`` where nobody says what links one node to the next.
        """
        nodes = -(-ranks // self.devices_per_node)
        if nodes <= self.nodes:
            return self
        if self.between is None:
            raise CdmppError(
                f"{ranks} ranks do not fit on cluster {self.name}: it is one node of {self.ranks} devices, and field "
                "between names no link to others"
            )
        return replace(self, nodes=nodes)

    def nodes_of(self, ranks: int) -> int:
        """Count the nodes that so many ranks fill; ``CdmppError`` where they do not fit or fill nodes unevenly."""
        if not 1 <= ranks <= self.ranks:
            raise CdmppError(f"{ranks} ranks do not fit on cluster {self.name}: it has {self.ranks} devices")
        nodes = -(-ranks // self.devices_per_node)
        if ranks % nodes:
            raise CdmppError(
                f"{ranks} ranks fill {nodes} nodes of {self.devices_per_node} devices unevenly: take another number"
            )
        return nodes


def names() -> tuple[str, ...]:
    """Return the names of all described clusters, sorted."""
    return tuple(sorted(sheet_files("cluster")))


def get(name: str) -> Cluster:
    """Return the cluster of that name, or of a ``*.yaml`` file; ``CdmppError`` names the nearest ones."""
    return read_cluster(Path(name) if name.endswith((".yaml", ".yml")) else sheet_file("cluster", "cluster", name))


@cache
def read_cluster(path: Path) -> Cluster:
    """Read and check one file; ``CdmppError`` names it, the field and the nearest device or link."""
    if isinstance(found := read_yaml(path), dict) and "kinds" in found:
        raise CdmppError(f"{path} has nodes of several kinds: say which devices the ranks of a plan have, by --devices")
    keys = {"name", "title", "documents", "device", "nodes", "devices_per_node", "inside"}
    content = read_sheet(path, {*keys, "between?", "adapters_per_node?", "host?"})

    def named(field: str, look_up: Callable[[str], _Sheet]) -> _Sheet:
        try:
            return look_up(str(content[field]))
        except CdmppError as error:
            raise CdmppError(f"{path}: field {field}: {error}") from error

    return Cluster(
        content["name"],
        str(content["title"]),
        named("device", devices.get).name,
        content["nodes"],
        content["devices_per_node"],
        named("inside", interconnect.get),
        named("between", interconnect.get) if content.get("between") is not None else None,
        content.get("adapters_per_node", 1),
        "; ".join(map(str, content["documents"].values())),
        _host(path, content["host"]) if "host" in content else None,
    )


def _host(path: Path, given: Any) -> Host:
    """Read what a file says of the host of a node."""
    try:
        values = dict(fitting("host", given, Mapping))
        check_keys(values, [one.name for one in fields(Host)], "host.")
        if missing := [name for name in ("link", "memory_gb", "memory_gbps") if name not in values]:
            raise CdmppError(f"host.{missing[0]} is missing")
        return Host(interconnect.get(str(values.pop("link"))), **values)
    except CdmppError as error:
        raise CdmppError(f"{path}: field {error}") from error
