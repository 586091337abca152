"""Interconnect: what public documents say of a link between devices, with a source per number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from cdmpp.collectives.collective import BACKENDS, MOST_RANKS, check_backend
from cdmpp.devices.sheet import read_quantity, read_sheet, sheet_file, sheet_files
from cdmpp.errors import CdmppError
from cdmpp.platform.limits import Limits, check_choice, check_fields, check_once, numbers

TOPOLOGIES: Mapping[str, str] = {
    "switch": "every device reaches every other at its full rate",
    "mesh": "each pair of devices has links of its own",
    "pair": "a bridge joins two devices",
    "bus": "devices share a tree of switches and sockets",
    "network": "adapters of several machines and the switches between them",
    "medium": "stations share one channel, both ways",
    "local": "processes of one machine talk through its memory",
}
_UNITS = {"bandwidth_gbps": "GB/s", "latency_s": "s", "joins": "1"}
_REACHED = "reached_gbps"


@dataclass(frozen=True)
class AlphaBeta:
    """One message from one device to another takes ``alpha_s + bytes * beta_s``."""

    alpha_s: float
    """Seconds until the first byte arrives."""
    beta_s: float
    """Seconds a byte."""

    def seconds(self, n_bytes: float) -> float:
        """Compute the seconds of a message of ``n_bytes``."""
        return self.alpha_s + n_bytes * self.beta_s

    @property
    def end(self) -> AlphaBeta:
        """Return the link of one of its two machines, with half of the start: a message crosses both."""
        return AlphaBeta(self.alpha_s / 2, self.beta_s)


@dataclass(frozen=True)
class Interconnect:
    """An interconnect is one kind of link as its public documents describe it.

    ``LIMITS``: the slowest described has 0.108 GB/s and the fastest 900, steps take 0.9 to 86 us.
    """

    LIMITS: ClassVar = {
        "bandwidth_gbps": numbers(0.01, 8192.0, "GB/s"),
        "latency_s": numbers(1e-8, 0.1, "s"),
        "reached_gbps": numbers(0.01, 8192.0, "GB/s"),
        "joins": Limits(2, MOST_RANKS, "devices"),
    }

    name: str
    title: str
    topology: str
    """A key of ``TOPOLOGIES``."""
    backends: tuple[str, ...]
    """The back ends that send over it, keys of ``collective.BACKENDS``."""
    joins: int | None
    """Most devices that it joins; None where switches join any number."""
    bandwidth_gbps: float
    """GB/s (1e9 bytes) that one device sends; it receives as much at the same time."""
    latency_s: float | None
    """Seconds of one step of a ring of small messages; None where nobody published it."""
    sources: Mapping[str, str]
    """The document behind ``bandwidth_gbps``, ``latency_s`` and ``joins``, or why there is none."""
    ranges: Mapping[str, tuple[float, float]]
    """(low, high) of a number of which no more is known; the number is their geometric middle."""
    reached_gbps: float | None = None
    """GB/s that long collectives reach of ``bandwidth_gbps``; None: the share that they do of measured links."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_choice("topology", self.topology, tuple(TOPOLOGIES))
        if self.reached_gbps is not None and self.reached_gbps > self.bandwidth_gbps:
            raise CdmppError(f"reached_gbps is {self.reached_gbps:g}: expected at most {self.bandwidth_gbps:g}")
        if not self.backends:
            raise CdmppError(f"backends is empty: expected some of {', '.join(BACKENDS)}")
        for backend in self.backends:
            check_backend(backend)
        check_once("backends", self.backends)

    def check(self, ranks: int, backend: str, measured: int = 0) -> None:
        """Raise ``CdmppError`` where ``backend`` does not send over it, it joins fewer than ``ranks``, or is a medium.

        ``measured`` is the largest number of ranks timed on machines with it, whose pairs may have other links too.
        """
        check_backend(backend)
        if self.topology == "medium":
            raise CdmppError(
                f"{self.name} is one channel that all share, in both directions: collectives on it are not predicted. "
                f"`cdmpp synchrony --link {self.name}` replays jobs with servers on it"
            )
        if backend not in self.backends:
            links = [get(name) for name in names()]
            others = [one.name for one in links if backend in one.backends and one.topology != "medium"]
            raise CdmppError(
                f"{backend} does not send over {self.name}, which {' and '.join(self.backends)} use: take one of them, "
                f"or a link of {backend} ({', '.join(others)})"
            )
        most = MOST_RANKS if self.joins is None else max(self.joins, measured)
        if ranks > most:
            raise CdmppError(
                f"{ranks} ranks on {self.name}: it joins at most {most:,} devices. Take fewer, or a cluster of nodes"
            )

    def alpha_beta(self, shared_by: float = 1.0) -> AlphaBeta:
        """Return the link that each of ``shared_by`` devices gets by the sheet; an unknown latency counts as none."""
        return AlphaBeta(self.latency_s or 0.0, max(shared_by, 1.0) / (1e9 * self.bandwidth_gbps))


def names() -> tuple[str, ...]:
    """Return the names of all described links, sorted."""
    return tuple(sorted(sheet_files("interconnect")))


def every() -> list[Interconnect]:
    """Return all described links, by name."""
    return [read_interconnect(path) for _, path in sorted(sheet_files("interconnect").items())]


def get(name: str) -> Interconnect:
    """Return the link of that name; ``CdmppError`` names the nearest ones where there is none."""
    return read_interconnect(sheet_file("interconnect", "link", name))


def medium(link: str) -> Interconnect | None:
    """Return the medium of that name; None for a link of its own or a ``*.csv`` file of messages.

    ``CdmppError`` names the nearest links where there is none.
    """
    named = None if link.endswith(".csv") else get(link)
    return named if named is not None and named.topology == "medium" else None


@cache
def read_interconnect(path: Path) -> Interconnect:
    """Read and check one file; ``CdmppError`` names it and the field that cannot be."""
    content = read_sheet(path, {"name", "title", "topology", "backends", "documents", *_UNITS, f"{_REACHED}?"})
    units = _UNITS | ({_REACHED: "GB/s"} if _REACHED in content else {})
    read = {key: read_quantity(path, key, content[key], unit, content["documents"]) for key, unit in units.items()}
    joins, backends = read["joins"].value, content["backends"]
    try:
        return Interconnect(
            content["name"],
            content["title"],
            content["topology"],
            tuple(backends) if isinstance(backends, list) else backends,
            int(joins) if joins and joins % 1 == 0 and not read["joins"].bounds else joins,  # type: ignore[arg-type]
            read["bandwidth_gbps"].value,  # type: ignore[arg-type]
            read["latency_s"].value,
            sources={key: number.source for key, number in read.items()},
            ranges={key: number.bounds for key, number in read.items() if number.bounds},
            reached_gbps=read[_REACHED].value if _REACHED in read else None,
        )
    except CdmppError as error:
        raise CdmppError(f"{path}: field {error}. Check the units") from error
