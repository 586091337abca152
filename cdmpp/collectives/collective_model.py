"""CollectiveModel: the time of a collective, from measured curves where there are some, else from datasheets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.collectives import interconnect
from cdmpp.collectives.collective import BACKENDS, KINDS, Collective
from cdmpp.collectives.collective_spread import spreads
from cdmpp.collectives.curve import Curve
from cdmpp.collectives.interconnect import Interconnect
from cdmpp.collectives.rank_scaling import nearest_two, scaled_by_sheet, scaled_from_two
from cdmpp.collectives.sheet_model import SheetModel
from cdmpp.errors import CdmppError, DataError
from cdmpp.platform.files import read_json, write_json

FORMAT = 1
TOLERANCE = 0.03
"""About what two measurements of the same collective differ by."""
SHIPPED = Path(__file__).with_name("collectives.json")


@dataclass(frozen=True)
class CollectiveEstimate:
    """One collective takes this time, from the arrival of the last rank on."""

    latency_s: float
    low_s: float
    high_s: float
    """Between ``low_s`` and ``high_s`` lie four of five measured times, as far as hidden parts of the tables tell."""
    source: str
    """The table or datasheet that the answer is made from."""
    flags: tuple[str, ...] = ()
    """Reasons to doubt the answer."""

    @classmethod
    def total(cls, parts: Sequence[CollectiveEstimate], flags: Iterable[str] = ()) -> CollectiveEstimate:
        """Add up parts that run one after the other; ``flags`` are further reasons to doubt them."""
        return cls(
            sum(one.latency_s for one in parts),
            sum(one.low_s for one in parts),
            sum(one.high_s for one in parts),
            " + ".join(one.source for one in parts),
            tuple(dict.fromkeys([*(flag for one in parts for flag in one.flags), *flags])),
        )


@dataclass(frozen=True)
class CollectiveModel:
    """Measured curves answer, or the model for links without any; how far each way is off is known."""

    curves: tuple[Curve, ...]
    sheet: SheetModel
    spread: dict[str, float]
    """Errors in log-seconds, as ``collective_spread.spreads`` gives them."""

    @classmethod
    def fit(cls, curves: Sequence[Curve], tolerance: float = TOLERANCE) -> CollectiveModel:
        """Fit to measured curves: of each a line is kept that never falls and is within ``tolerance`` of its points."""
        kept = tuple(kept_curve(curve, tolerance) for curve in curves)
        even = [curve.kept(_octaves(curve.bytes)) for curve in curves]
        sheet = SheetModel.fit(even)
        return cls(kept, sheet, spreads(even, sheet))

    def systems(self, backend: str, kind: str, link: str, ranks: int) -> tuple[str, ...]:
        """List measured systems with such a link: first those with as many ranks, then those with most curves."""
        if (key := (backend, kind, link, ranks)) not in self._systems:
            self._systems[key] = self._measured(*key)
        return self._systems[key]

    @cached_property
    def _systems(self) -> dict[tuple[str, str, str, int], tuple[str, ...]]:
        return {}

    def _measured(self, backend: str, kind: str, link: str, ranks: int) -> tuple[str, ...]:
        own = [curve for curve in self.curves if (curve.backend, curve.link, curve.nodes) == (backend, link, 1)]
        fit = [curve for curve in own if curve.kind == kind]
        count = {curve.system: sum(other.system == curve.system for other in own) for curve in fit}
        exact = {curve.system for curve in fit if curve.ranks == ranks}
        return tuple(sorted(count, key=lambda name: (name not in exact, -count[name], name)))

    def check(self, link: Interconnect, ranks: int, backend: str) -> None:
        """Raise ``CdmppError`` where ``backend`` does not send over ``link``, or so many are not joined nor timed."""
        if ranks > 1:
            link.check(ranks, backend, self._most_ranks.get((link.name, backend), 0))

    @cached_property
    def _most_ranks(self) -> dict[tuple[str | None, str], int]:
        """Link and back end -> most ranks that were timed there."""
        found = dict[tuple[str | None, str], int]()
        for one in self.curves:
            found[one.link, one.backend] = max(one.ranks, found.get((one.link, one.backend), 0))
        return found

    def predict(
        self, collective: Collective, link: str | Interconnect, system: str | None = None, shared_by: float = 1.0
    ) -> CollectiveEstimate:
        """Predict the time on one link; of several measured systems the best, or ``system``.

        ``shared_by`` devices share an adapter between nodes. ``CdmppError`` where ``system`` was not measured, and as
        ``check``.
        """
        on = interconnect.get(link) if isinstance(link, str) else link
        asked, flags = collective.runs_as, _renamed(collective)
        if asked.ranks == 1:
            return CollectiveEstimate(0.0, 0.0, 0.0, "one rank has nobody to talk to", tuple(flags))
        self.check(on, asked.ranks, asked.backend)
        measured = self.systems(asked.backend, asked.kind, on.name, asked.ranks)
        if system is not None and system not in measured:
            told = ", ".join(measured) or "none"
            what = f"no {asked.kind} of {asked.backend}"
            raise CdmppError(f"{what} was measured on {system} over {on.name}; measured: {told}")
        if on.topology == "pair" and asked.ranks > 2:
            flags.append(f"{on.name} joins two devices: what lies between the pairs decides, and is not told")
        if not measured or shared_by > 1:
            flags.append(f"no table of {asked.backend} {asked.kind} on {on.name}: from its datasheet")
            if on.latency_s is None:
                flags.append(f"nobody published the latency of {on.name}: that of its kind is taken")
            seconds, source = self.sheet.seconds(asked, on, shared_by), f"datasheet of {on.name}"
            if (least := self._faster(asked, on)) is not None and least.latency_s > seconds:
                seconds, source = least.latency_s, f"{source}, no faster than {least.source}"
                flags += least.flags
            return self._answer(seconds, self._spread("link", on), source, flags)
        return self._from_curves(asked, on, system or measured[0], flags)

    def _faster(self, asked: Collective, on: Interconnect) -> CollectiveEstimate | None:
        """Answer for the slowest link that was measured, is alike and by its sheet as fast as ``on``; None: no such.

        A sheet is no measurement: without this, PCI Express 3 would be faster than measured cards on version 4.
        """
        key = asked.backend, asked.kind, on.name, asked.ranks
        if key not in self._measured_faster:
            found = [
                (one, systems[0])
                for one in interconnect.every()
                if one.topology == on.topology
                and one.bandwidth_gbps >= on.bandwidth_gbps
                and (one.latency_s or 0.0) <= (on.latency_s or math.inf)
                and (systems := self.systems(asked.backend, asked.kind, one.name, asked.ranks))
            ]
            self._measured_faster[key] = min(found, key=lambda pair: pair[0].bandwidth_gbps, default=None)
        if (bound := self._measured_faster[key]) is None:
            return None
        link, system = bound
        flag = f"{system} over {link.name}, which is no slower by its datasheet, was measured to take as long"
        return self._from_curves(asked, link, system, [flag])

    @cached_property
    def _measured_faster(self) -> dict[tuple[str, str, str, int], tuple[Interconnect, str] | None]:
        """Link and system that bound a sheet's answer, by back end, kind, link and ranks."""
        return {}

    def _from_curves(self, asked: Collective, on: Interconnect, system: str, flags: list[str]) -> CollectiveEstimate:
        key = system, asked.backend, asked.kind, on.name, asked.ranks
        if key not in self._of_ranks:
            self._of_ranks[key] = self._scaled(asked, on, system)
        curve, spread, doubts = self._of_ranks[key]
        flags += doubts
        if outside := curve.octaves_outside(asked.bytes):
            measured = f"{curve.bytes[0]:.0f} to {curve.bytes[-1]:.0f} bytes"
            flags.append(f"{asked.bytes} bytes lie outside what was measured, {measured}: the last slope goes on")
            spread += outside * self._spread("octave", on)
        return self._answer(float(curve.at(asked.bytes)), spread, f"measured {asked.backend} on {system}", flags)

    @cached_property
    def _of_ranks(self) -> dict[tuple[str, str, str, str, int], tuple[Curve, float, list[str]]]:
        """Curves by system, back end, kind, link and ranks, as ``_scaled`` made them."""
        return {}

    def _scaled(self, asked: Collective, on: Interconnect, system: str) -> tuple[Curve, float, list[str]]:
        """The curve of as many ranks, how far it may be off in log-seconds, and reasons to doubt it."""
        key, flags = (system, asked.backend, asked.kind, on.name, 1), list[str]()
        counts = {c.ranks: c for c in self.curves if (c.system, c.backend, c.kind, c.link, c.nodes) == key}
        if asked.ranks in counts:
            curve, way = counts[asked.ranks], "size"
        elif len(counts) > 1:
            few, many = nearest_two(counts, asked.ranks)
            curve, way = scaled_from_two(counts[few], counts[many], asked.ranks), "ranks"
            flags.append(f"{asked.ranks} ranks were not measured on {system}: from {few} and {many}")
        else:
            (known,) = counts.values()
            curve, way = scaled_by_sheet(known, self.sheet, on, asked.ranks), "one_count"
            flags.append(
                f"{asked.ranks} ranks were not measured on {system}: from {known.ranks}, as the datasheet grows"
            )
        if asked.ranks > 4 and asked.ranks not in counts and on.topology == "bus":
            flags.append("cards on a bus may cross a socket with so many ranks, which no sheet tells")
        far = max(asked.ranks / max(counts), min(counts) / asked.ranks, 2.0)
        return curve, self._spread(way, on) * math.log2(far), flags

    def _spread(self, way: str, link: Interconnect) -> float:
        return self.spread.get(f"{way}/{link.topology}", self.spread[way])

    @staticmethod
    def _answer(seconds: float, spread: float, source: str, flags: list[str]) -> CollectiveEstimate:
        wide = math.exp(spread)
        return CollectiveEstimate(seconds, seconds / wide, seconds * wide, source, tuple(flags))

    def save(self, path: Path) -> None:
        """Write one JSON file, whole or not at all."""
        curves = [
            {
                **_key(curve),
                "bytes": [round(b) for b in curve.bytes],
                "latency_us": [float(f"{1e6 * t:.4g}") for t in curve.latency_s],
            }
            for curve in self.curves
        ]
        write_json(path, {"format": FORMAT, "sheet": asdict(self.sheet), "spread": self.spread, "curves": curves})

    @classmethod
    def load(cls, path: Path) -> CollectiveModel:
        """Read what ``save`` wrote; ``DataError`` names the file and what is wrong with it."""
        content = read_json(path)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise DataError(f"{path} is not a collective model of format {FORMAT}: fit it again with this cdmpp")
        try:
            curves = tuple(_curve(entry) for entry in content["curves"])
            spread = {str(name): float(value) for name, value in content["spread"].items()}
            return cls(curves, SheetModel(**content["sheet"]), spread)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path} is damaged: {error}; fit it again") from error


@cache
def shipped() -> CollectiveModel:
    """Load the model that comes with the package."""
    return CollectiveModel.load(SHIPPED)


def kept_curve(curve: Curve, tolerance: float = TOLERANCE) -> Curve:
    """Return the part of a measured curve that the model keeps: few knots of a line that never falls."""
    return curve.monotone().fitted(tolerance)


def _renamed(collective: Collective) -> list[str]:
    asked = collective.runs_as
    return [] if asked is collective else [f"{collective.backend} runs a {collective.kind} as an {asked.kind}"]


def _octaves(sizes: np.ndarray) -> np.ndarray:
    """Indices of about one size a doubling, so that finely measured curves are judged as coarse ones."""
    wanted = np.arange(np.log2(sizes[0]), np.log2(sizes[-1]) + 0.5)
    return np.unique(np.abs(np.log2(sizes)[:, None] - wanted).argmin(0))


def _key(curve: Curve) -> dict[str, Any]:
    return {name: getattr(curve, name) for name in ("system", "link", "backend", "kind", "ranks", "nodes")}


def _curve(entry: dict[str, Any]) -> Curve:
    if entry["kind"] not in KINDS or entry["backend"] not in BACKENDS:
        raise DataError(f"unknown kind or back end in curve {entry['kind']} of {entry['backend']}")
    latency_s = 1e-6 * np.asarray(entry["latency_us"], np.float64)
    return Curve(
        **{name: entry[name] for name in ("system", "link", "backend", "kind", "ranks", "nodes")},
        bytes=entry["bytes"],
        latency_s=latency_s,
    )
