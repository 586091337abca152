"""How far answers of each kind are off: parts of the measured curves are hidden and answered from the rest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from cdmpp.distributed import interconnect
from cdmpp.distributed.collective import Collective
from cdmpp.distributed.curve import Curve
from cdmpp.distributed.rank_scaling import scaled_by_sheet, scaled_from_two
from cdmpp.distributed.sheet_model import SheetModel, follows_sheet

LEVEL = 0.8
"""Share of the answers whose interval is to hold the measured time."""
WAYS: Mapping[str, str] = {
    "size": "between measured sizes",
    "octave": "a size beyond the measured ones, each time it is doubled or halved",
    "ranks": "another number of ranks, from two measured ones",
    "one_count": "another number of ranks, from one measured one",
    "link": "a link without a table, from its datasheet",
}
_FEWEST = 3
_UNTRIED, _UNTRIED_OCTAVE = 1.0, 0.2
"""In log-seconds, where no curve tells: far more than on the public tables."""
_CUT = 4
"""Doublings that are cut off a curve to see how it goes on."""


def spreads(curves: Sequence[Curve], sheet: SheetModel) -> dict[str, float]:
    """Way, or ``way/topology`` where the topology has curves enough -> error in log-seconds that ``LEVEL`` stay below.

    Every curve weighs the same. What has no curve to be tried on gets the spread of the next harder way.
    """
    errors: dict[str, list[np.ndarray]] = defaultdict(list)
    for way, link, off in _trials([c for c in curves if c.link is not None and c.nodes == 1], sheet):
        for name in (way, f"{way}/{interconnect.get(link).topology}"):
            errors[name].append(np.abs(off))
    found = {name: _quantile(of) for name, of in errors.items() if name in WAYS or len(of) >= _FEWEST}
    found.setdefault("octave", _UNTRIED_OCTAVE)
    harder = _UNTRIED
    for way in ("link", "one_count", "ranks", "size"):
        harder = found.setdefault(way, harder)
    return dict(sorted(found.items()))


def _trials(curves: list[Curve], sheet: SheetModel) -> Iterable[tuple[str, str, np.ndarray]]:
    """(way, link, errors in log-seconds) of each trial."""
    by_cell: dict[tuple, dict[int, Curve]] = defaultdict(dict)
    for curve in curves:
        by_cell[curve.system, curve.backend, curve.kind][curve.ranks] = curve
        rows = np.arange(len(curve.bytes))
        if len(rows) >= 2 * _FEWEST:
            hidden = rows[1:-1:2]
            yield "size", str(curve.link), _off(curve.kept(np.setdiff1d(rows, hidden)), curve, hidden)
        cut = np.flatnonzero(curve.bytes > curve.bytes[-1] / 2**_CUT)
        if len(rows) - len(cut) >= 2 * _FEWEST:
            left = curve.kept(np.setdiff1d(rows, cut))
            yield "octave", str(curve.link), _off(left, curve, cut) / np.log2(curve.bytes[cut] / left.bytes[-1])
    for by_ranks in by_cell.values():
        for ranks, curve in by_ranks.items():
            fewer = sorted(count for count in by_ranks if count < ranks)
            link, every = interconnect.get(str(curve.link)), np.arange(len(curve.bytes))
            if len(fewer) >= 2:
                yield (
                    "ranks",
                    link.name,
                    _off(scaled_from_two(by_ranks[fewer[-2]], by_ranks[fewer[-1]], ranks), curve, every),
                )
            if fewer:
                yield (
                    "one_count",
                    link.name,
                    _off(scaled_by_sheet(by_ranks[fewer[-1]], sheet, link, ranks), curve, every),
                )
    curves = [curve for curve in curves if follows_sheet(curve)]
    links = sorted({str(curve.link) for curve in curves})
    for name in links if len(links) > 1 else ():
        blind, link = SheetModel.fit([curve for curve in curves if curve.link != name]), interconnect.get(name)
        for curve in (c for c in curves if c.link == name):
            told = [
                blind.seconds(Collective(curve.kind, int(b), curve.ranks, curve.backend), link) for b in curve.bytes
            ]
            yield "link", name, np.log(told) - np.log(curve.latency_s)


def _off(answer: Curve, truth: Curve, rows: np.ndarray) -> np.ndarray:
    return np.log(answer.at(truth.bytes[rows])) - np.log(truth.latency_s[rows])


def _quantile(parts: list[np.ndarray]) -> float:
    """Of all errors, with each part weighing the same."""
    values = np.concatenate(parts)
    weights = np.concatenate([np.full(len(part), 1 / len(part)) for part in parts])
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][min(int(np.searchsorted(reached, LEVEL)), len(values) - 1)])
