"""UnlikeCluster: nodes of several devices, with the links inside each kind of node and its adapter to others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Any, ClassVar

from cdmpp.collectives import interconnect
from cdmpp.collectives.collective import MOST_RANKS
from cdmpp.collectives.interconnect import Interconnect
from cdmpp.devices.sheet import read_sheet, sheet_file
from cdmpp.errors import CdmppError
from cdmpp.model.config import check_keys
from cdmpp.platform.content import read_yaml
from cdmpp.platform.limits import Limits, check_fields, fitting


@dataclass(frozen=True)
class NodeKind:
    """Equal nodes of equal devices."""

    LIMITS: ClassVar = {"nodes": Limits(1, MOST_RANKS)}

    device: str
    """The name that plans give its devices: one of `cdmpp devices`, or that of a column of measured layers."""
    nodes: int
    inside: Interconnect
    """The link between devices of one node."""
    between: Interconnect | None
    """The link of one adapter to other nodes; None where there is one node in all."""


@dataclass(frozen=True)
class UnlikeCluster:
    """All nodes have as many devices and adapters."""

    LIMITS: ClassVar = dict.fromkeys(("devices_per_node", "adapters_per_node"), Limits(1, MOST_RANKS))

    name: str
    kinds: tuple[NodeKind, ...]
    devices_per_node: int
    adapters_per_node: int = 1

    def __post_init__(self) -> None:
        where = f"cluster {self.name!r:.60}: "
        check_fields(self, where)
        names = [one.device for one in self.kinds]
        if not names or len(set(names)) < len(names):
            raise CdmppError(f"{where}field kinds names devices {', '.join(names) or 'none'}: give each once")
        for one in self.kinds:
            check_fields(one, f"{where}{one.device}.")
            if one.between is None and (len(self.kinds) > 1 or one.nodes > 1):
                raise CdmppError(f"{where}{one.device}.between is missing: name the link of its adapter to other nodes")
            if one.inside.joins is not None and self.devices_per_node > one.inside.joins:
                raise CdmppError(
                    f"{where}devices_per_node is {self.devices_per_node}, and {one.inside.name} joins at most "
                    f"{one.inside.joins}: take fewer, or another link inside"
                )

    def kind(self, device: str) -> NodeKind:
        """Return the nodes of a device; ``CdmppError`` where there are none."""
        found = {one.device: one for one in self.kinds}
        if device not in found:
            raise CdmppError(f"cluster {self.name} has no {device}: its devices are {', '.join(found)}")
        return found[device]

    def per_node(self, counts: Mapping[str, int]) -> int:
        """Return how many devices of each node a job takes.

        Args:
            counts: device -> how many of it the job takes.

        Raises:
            CdmppError: devices that are not here, or more than there are.
        """
        fitting_ = [one for one in range(1, self.devices_per_node + 1) if gcd(*counts.values()) % one == 0]
        each = max(fitting_)
        for name, count in counts.items():
            if count > (most := each * self.kind(name).nodes):
                raise CdmppError(
                    f"{count} ranks on {name} do not fit on cluster {self.name}: with {each} on each node, as many on "
                    f"all, {most} do"
                )
        return each


def get(name: str) -> UnlikeCluster | None:
    """Return the cluster of that name, or of a ``*.yaml`` file; None where all its nodes are equal.

    ``CdmppError`` where there is no such cluster, or what it says cannot be.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else sheet_file("cluster", "cluster", name)
    return read_unlike(path) if is_unlike(path) else None


def is_unlike(path: Path) -> bool:
    """Return True if a description has nodes of several kinds."""
    content = read_yaml(path)
    return isinstance(content, Mapping) and "kinds" in content


def read_unlike(path: Path) -> UnlikeCluster:
    """Read and check one file; ``CdmppError`` names it."""
    content = read_sheet(path, {"name", "title", "documents", "devices_per_node", "kinds", "adapters_per_node?"})
    given: Sequence[Any] = fitting(f"{path}: field kinds", content["kinds"], list[Any])
    try:
        kinds = tuple(_kind(one) for one in given)
        return UnlikeCluster(
            str(content["name"]), kinds, content["devices_per_node"], content.get("adapters_per_node", 1)
        )
    except CdmppError as error:
        raise CdmppError(f"{path}: {error}") from error


def _kind(given: Any) -> NodeKind:
    values = dict(fitting("field kinds", given, Mapping))
    check_keys(values, ["device", "nodes", "inside", "between"], "kinds.")
    if lacking := [name for name in ("device", "nodes", "inside") if name not in values]:
        raise CdmppError(f"field kinds.{lacking[0]} is missing")
    between = values.get("between")
    return NodeKind(
        str(values["device"]),
        values["nodes"],
        interconnect.get(str(values["inside"])),
        None if between is None else interconnect.get(str(between)),
    )
