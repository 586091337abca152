"""Errors of each way of answering: parts of the measured curves are hidden and answered from the rest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from cdmpp.collectives import interconnect
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.curve import Curve
from cdmpp.collectives.rank_scaling import scaled_by_sheet, scaled_from_two
from cdmpp.collectives.sheet_model import SheetModel, follows_sheet

LEVEL = 0.8
"""Share of the answers whose interval is to hold the measured time."""
WAYS: Mapping[str, str] = {
    "size": "between measured sizes",
    "octave": "a size beyond the measured ones, each time it is doubled or halved",
    "ranks": "another number of ranks, from two measured ones",
    "one_count": "another number of ranks, from one measured one",
    "link": "a link without a table, from its datasheet",
}
_Trial = tuple[str, str, np.ndarray]
"""Way, link, and errors in log-seconds."""
_FEWEST = 3
_UNTRIED, _UNTRIED_OCTAVE = 1.0, 0.2
"""Errors in log-seconds where no curve can tell: far more than on the public tables."""
_CUT = 4
"""Doublings that are cut off a curve to see how it goes on."""


def spreads(curves: Sequence[Curve], sheet: SheetModel) -> dict[str, float]:
    """Map each way, or ``way/topology`` with curves enough, to the error in log-seconds that ``LEVEL`` stay below.

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


def _trials(curves: list[Curve], sheet: SheetModel) -> Iterable[_Trial]:
    cells: dict[tuple, dict[int, Curve]] = defaultdict(dict)
    for curve in curves:
        cells[curve.system, curve.backend, curve.kind][curve.ranks] = curve
        yield from _of_sizes(curve, str(curve.link))
    for by_ranks in cells.values():
        yield from _of_ranks(by_ranks, sheet)
    yield from _of_links([curve for curve in curves if follows_sheet(curve)])


def _of_sizes(curve: Curve, link: str) -> Iterable[_Trial]:
    """Every second size hidden, and then the largest ones."""
    rows = np.arange(len(curve.bytes))
    if len(rows) >= 2 * _FEWEST:
        hidden = rows[1:-1:2]
        yield "size", link, _off(curve.kept(np.setdiff1d(rows, hidden)), curve, hidden)
    cut = np.flatnonzero(curve.bytes > curve.bytes[-1] / 2**_CUT)
    if len(rows) - len(cut) >= 2 * _FEWEST:
        left = curve.kept(np.setdiff1d(rows, cut))
        yield "octave", link, _off(left, curve, cut) / np.log2(curve.bytes[cut] / left.bytes[-1])


def _of_ranks(by_ranks: Mapping[int, Curve], sheet: SheetModel) -> Iterable[_Trial]:
    """Each number of ranks from the nearest smaller ones."""
    for ranks, curve in by_ranks.items():
        fewer = [by_ranks[count] for count in sorted(by_ranks) if count < ranks]
        link, every = interconnect.get(str(curve.link)), np.arange(len(curve.bytes))
        if len(fewer) >= 2:
            yield "ranks", link.name, _off(scaled_from_two(fewer[-2], fewer[-1], ranks), curve, every)
        if fewer:
            yield "one_count", link.name, _off(scaled_by_sheet(fewer[-1], sheet, link, ranks), curve, every)


def _of_links(curves: list[Curve]) -> Iterable[_Trial]:
    """Each link from its sheet and the curves of the others."""
    for link in map(interconnect.get, sorted({str(curve.link) for curve in curves})):
        others = [curve for curve in curves if curve.link != link.name]
        if not others:
            return
        blind = SheetModel.fit(others)
        for curve in curves:
            if curve.link == link.name:
                asked = [Collective(curve.kind, int(size), curve.ranks, curve.backend) for size in curve.bytes]
                told = np.log([blind.seconds(one, link) for one in asked])
                yield "link", link.name, told - np.log(curve.latency_s)


def _off(answer: Curve, truth: Curve, rows: np.ndarray) -> np.ndarray:
    return np.log(answer.at(truth.bytes[rows])) - np.log(truth.latency_s[rows])


def _quantile(parts: list[np.ndarray]) -> float:
    """The error in log-seconds that ``LEVEL`` of all errors stay below, with each part weighing the same."""
    values = np.concatenate(parts)
    weights = np.concatenate([np.full(len(part), 1 / len(part)) for part in parts])
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][min(int(np.searchsorted(reached, LEVEL)), len(values) - 1)])
