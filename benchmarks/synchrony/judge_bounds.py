"""What measurements can tell: knees that are measured again, searches that end in two ways, cells that are far off."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import fisher_exact

from benchmarks.synchrony.cells import Cell, is_for_fit
from benchmarks.synchrony.judge_grid import REGRET, Judged, Rates, budgets, knee, knee_series
from benchmarks.synchrony.judge_noise import pairs
from benchmarks.synchrony.judge_policies import by_policy, predicted
from benchmarks.synchrony.predict_runs import (
    Batches,
    Constants,
    Runs,
    alone_of,
    beta_of,
    measured_cells,
    predicted_rates,
)

_DRAWS = 4000
_REPLAYS = 64
_ODD = 4
"""Cells that are farthest off and are shown."""
_PARTS = 0.05
"""The aim for commits."""


def tables(runs: Runs, constants: Constants, found: Judged, ours: str) -> list[dict[str, Any]]:
    """The tables of the page; ``ours``: whose errors are looked at."""
    made = [_knees(runs, found, ours)] if pairs(runs) else []
    made += [_odd(runs, constants, found, ours), _regret(found, ours)]
    if "adsp, searched" in by_policy(runs):
        made.append(_searched(runs, constants))
    return made


def knee_draws(series: Sequence[Sequence[Cell]], truth: Rates, runs: Runs, draws: int = _DRAWS) -> np.ndarray:
    """Measure the series again and again, if ``truth`` were right: how many workers each knee is off, (draws, series).

    The noise of a run is drawn from cells with as many workers that were measured twice: their deviation from the mean
    of both, either way, times the root of 2 for a single run. A cell that was measured twice has the mean of two runs.
    """
    twice = {cell: (first - second) / (first + second) for cell, first, second in pairs(runs)}
    random, off = np.random.default_rng(0), np.zeros((draws, len(series)), int)
    for place, cells in enumerate(series):
        noise = []
        for cell in cells:
            own = np.array([apart for other, apart in twice.items() if other.workers == cell.workers])
            scale = 1.0 if cell in twice else math.sqrt(2)
            noise.append(scale * random.choice(np.concatenate([own, -own]), draws))
        was = knee(cells, truth)
        for draw in range(draws):
            again = {cell: truth[cell] * (1 + float(noise[i][draw])) for i, cell in enumerate(cells)}
            off[draw, place] = knee(cells, again) - was
    return off


def _knees(runs: Runs, found: Judged, ours: str) -> dict[str, Any]:
    series, rows = knee_series(found), []
    said = [abs(knee(one, found.by[ours]) - knee(one, found.measured)) <= 1 for one in series]
    again = [
        knee(one, {c: twice[c][1] if c in twice else found.measured[c] for c in one})
        - knee(one, {c: twice[c][0] if c in twice else found.measured[c] for c in one})
        for twice in [{cell: (first, second) for cell, first, second in pairs(runs)}]
        for one in series
        if any(cell in twice for cell in one)
    ]
    for name, truth in (("the measured rates", found.measured), (f"the rates of {ours}", found.by[ours])):
        off = abs(knee_draws(series, truth, runs))
        near = (off <= 1).sum(axis=1)
        rows.append(
            [name, f"{np.mean(off == 0):.0%}", f"{np.mean(off <= 1):.0%}", f"{np.mean(near == len(series)):.1%}",
             f"{np.mean(near <= sum(said)):.0%}"]
        )  # fmt: skip
    missed = [one for one, good in zip(series, said, strict=True) if not good]
    return {
        "title": "What a perfect predictor of knees gets",
        "note": (
            f"The {len(series)} series measured again {_DRAWS:,} times by drawing, if the named rates were exactly "
            "right, with the noise of the cells that were measured twice, by workers. So often the knee of the drawn "
            "measurement is that of the right rates, so often it is within 1, so often it is within 1 in all series, "
            f"and so often in no more series than {ours} gets right, {sum(said)}: so often does a perfect predictor do "
            f"no better. Of the {len(again)} series with cells that were measured twice, "
            f"{sum(one == 0 for one in again)} have the same knee by the first runs as by the second ones and "
            f"{sum(abs(one) <= 1 for one in again)} one within 1. Missed by 2: "
            + "; ".join(_series_words(one, found, ours) for one in missed)
            + "."
        ),
        "commands": [],
        "columns": ["right are", "equal", "within 1", "within 1 in all", f"at most {sum(said)} within 1"],
        "rows": rows,
    }  # fmt: skip


def _series_words(cells: Sequence[Cell], found: Judged, ours: str) -> str:
    one = cells[0]
    rates = " ".join(f"{found.measured[cell]:.0f}" for cell in cells)
    says = " ".join(f"{found.by[ours][cell]:.0f}" for cell in cells)
    return f"{one.network} with {one.share:g} of a core and {one.mbit:g} Mbit/s, measured {rates} and predicted {says}"


def _odd_cells(found: Judged, ours: str) -> list[Cell]:
    """The cells that nothing was fitted on and that are farthest off."""
    tests = [cell for cell in found.measured if not is_for_fit(cell)]
    return sorted(tests, key=lambda cell: -abs(found.by[ours][cell] / found.measured[cell] - 1))[:_ODD]


def _odd(runs: Runs, constants: Constants, found: Judged, ours: str) -> dict[str, Any]:
    """The cells that are farthest off, with what their links carry and what replays of them give."""
    by = found.by[ours]
    first = dict(reversed(measured_cells(runs)))
    rows, part, less = [], 0.0, 0.0
    for cell in _odd_cells(found, ours):
        alone, was = alone_of(runs, cell.network, cell.share), found.measured[cell]
        wire_s = alone["parameter_bytes"] * beta_of(runs, cell.mbit)
        free = cell.workers * next(found.measured[one] for one in found.measured if _is_single(one, cell))
        carried = cell.servers * cell.every * alone["samples"] / wire_s
        more = [found.measured[one] for one in found.measured if _is_next(one, cell)]
        rates = predicted_rates(runs, cell, first[cell], constants, Batches.ALONE, _REPLAYS)
        rows.append(
            [cell.name, f"{was:.0f}", f"{by[cell]:.0f}", f"{100 * (by[cell] / was - 1):+.0f}",
             f"{min(rates):.0f} to {max(rates):.0f}", f"{free:.0f}", f"{carried:.0f}",
             f"{more[0]:.0f}" if more else "–"]
        )  # fmt: skip
        if len(rows) == 1:
            part, less = was / min(free, carried), 1 - more[0] / was if more else 0.0
    return {
        "title": "Cells that are farthest off",
        "note": (
            "Names: network, workers, share, Mbit/s, batches a commit, servers. Samples a second, measured and "
            f"predicted by {ours}; the range of {_REPLAYS} replays of the job; workers times the measured rate of one, "
            "what they would have if no two ever shared the link; what the servers' links carry; and the measured rate "
            f"with one worker more. The worst cell has {part:.0%} of what it would have if no two workers ever met on "
            f"the link; with one more worker the same link was measured to carry {less:.0%} less. So the workers of "
            "one job hardly met, and those of the other did. Replays let workers drift by chance only, since transfers "
            "share a link evenly, and most of these rates lie beyond all replays: that is the cause of the largest "
            "errors, all below the measured rate."
        ),
        "commands": [],
        "columns": [
            "cell", "measured", "predicted", "off, %", "replays", "never meeting", "links", "one worker more",
        ],
        "rows": rows,
    }  # fmt: skip


def _is_single(one: Cell, cell: Cell) -> bool:
    return _is_beside(one, cell, 1)


def _is_next(one: Cell, cell: Cell) -> bool:
    return _is_beside(one, cell, cell.workers + 1)


def _is_beside(one: Cell, cell: Cell, workers: int) -> bool:
    return {**one.to_dict(), "workers": 0} == {**cell.to_dict(), "workers": 0} and one.workers == workers


def _regret(found: Judged, ours: str) -> dict[str, Any]:
    """Budgets whose choice loses more than is allowed."""
    rows = []
    odd = _odd_cells(found, ours)
    for one in budgets(found):
        best, chosen = one.best(found.measured), one.best(found.by[ours])
        loss = 1 - found.measured[chosen] / found.measured[best]
        if loss > 0:
            rows.append(
                (loss, best, [f"{one.network}, {one.mbit:g} Mbit/s, {one.machines} machines",
                              _words(best, found, ours), _words(chosen, found, ours), f"{100 * loss:.1f}"])
            )  # fmt: skip
    rows.sort(key=lambda row: -row[0])
    return {
        "title": "Budgets whose choice is not the best measured one",
        "note": (
            f"By {ours}: workers + servers, with samples a second as measured / as predicted. In "
            f"{sum(best in odd for loss, best, _ in rows if loss > REGRET)} of the "
            f"{sum(loss > REGRET for loss, _, _ in rows)} that lose more than {REGRET:.0%} the best one is a cell of "
            "the table above: the regret has the same cause."
        ),
        "commands": [],
        "columns": ["budget", "best", "chosen", "regret %"],
        "rows": [row for *_, row in rows],
    }


def _words(cell: Cell, found: Judged, ours: str) -> str:
    return f"{cell.workers} + {cell.servers}: {found.measured[cell]:.0f} / {found.by[ours][cell]:.0f}"


def within(counts: Mapping[int, int], jobs: int, part: float) -> float:
    """Compute how often the mean of ``jobs`` lies within ``part`` of its expectation, if it is drawn from two counts.

    Args:
        counts: what a job counts -> how many of the jobs did, at most two.
        jobs: drawn at a time.
        part: of the expectation.
    """
    if len(counts) == 1:
        return 1.0
    (low, few), (high, many) = sorted(counts.items())
    share = many / (few + many)
    expected = low + (high - low) * share
    return sum(
        math.comb(jobs, k) * share**k * (1 - share) ** (jobs - k)
        for k in range(jobs + 1)
        if abs(low + (high - low) * k / jobs - expected) <= part * expected
    )


def _searched(runs: Runs, constants: Constants) -> dict[str, Any]:
    """How often searches of ADSP end in which number of commits."""
    own = by_policy(runs)["adsp, searched"]
    measured = Counter(run["commits"][0] for run in own)
    replayed = Counter(one.outcome.workers[0].commits for one in predicted(runs, constants)["adsp, searched"])
    spread = float(np.std([run["commits"][0] for run in own], ddof=1) / np.mean([run["commits"][0] for run in own]))
    every = sorted({*measured, *replayed})
    table = [[counted[one] for one in every] for counted in (measured, replayed)]
    chance = float(fisher_exact(table).pvalue) if len(every) == 2 else float("nan")
    sure = f"{within(measured, len(own), _PARTS):.0%}" if len(measured) <= 2 else "–"
    return {
        "title": "Searched commits of ADSP",
        "note": (
            "The search goes on to more commits or ends, by three losses each of a few noisy batches: it ends in two "
            "ways, and replays end in the same two. Below, in how many jobs a worker commits so often. The commits "
            f"of jobs vary by {spread:.0%} of their mean from seed to seed, so that a mean of {len(own)} jobs says "
            f"little: who knows exactly how often a search ends in which way is within {_PARTS:.0%} of such a mean "
            f"with a probability of {sure}. The shares of jobs and replays differ as they would by chance with a "
            f"probability of {chance:.0%} (Fisher's exact test)."
        ),
        "commands": [],
        "columns": ["commits of a worker", *map(str, every)],
        "rows": [
            ["measured jobs", *(f"{measured[one]} of {len(own)}" for one in every)],
            ["replays", *(f"{replayed[one]} of {sum(replayed.values())}" for one in every)],
        ],
    }
