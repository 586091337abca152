"""Predicted and measured jobs of equal workers: errors, saturation knees, and what is chosen under a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from benchmarks.synchrony.cells import NETWORKS, RATES, Cell, is_for_fit
from benchmarks.synchrony.predict_runs import (
    Batches,
    Constants,
    Runs,
    around_s,
    errors,
    linear_rate,
    loop_rate,
    measured_cells,
    predicted_rate,
    predicted_rates,
)

Rates = Mapping[Cell, float]
"""Samples a second of each cell."""
OURS, LOOP = "replay", "closed form"
ALONE = f"{OURS}, {Batches.ALONE.value}"
"""The prediction from nothing but one worker: it is looked at closely."""
LINEAR, LINEAR_AROUND = f"linear, capped, {Batches.ALONE.value}", f"linear, capped, {Batches.AROUND.value}"
LINEAR_MEASURED = "linear, capped, the measured rate of one worker"
_KNEE = 0.5
"""One more worker is worth it where it brings this part of what the first one does."""
BUDGETS = range(2, 7)
REGRET = 0.03


@dataclass(frozen=True)
class Judged:
    """All cells by who says how fast they are."""

    measured: Rates
    by: Mapping[str, Rates]


def judged(runs: Runs, constants: Constants) -> Judged:
    """Judge all cells; one that was measured again counts with the mean of its runs, and of what is said of them."""
    cells = measured_cells(runs)
    measured = _means([(cell, float(run["samples_per_s"])) for cell, run in cells])
    single = {cell: measured[replace(cell, workers=1)] for cell in measured}
    by = {
        f"{name}, {batches.value}": _means([(cell, rate(runs, cell, run, constants, batches)) for cell, run in cells])
        for name, rate in ((OURS, predicted_rate), (LOOP, loop_rate))
        for batches in Batches
    }
    around = [(cell, linear_rate(runs, cell, around_s(runs, cell, run))) for cell, run in cells]
    by[LINEAR] = {cell: linear_rate(runs, cell) for cell in measured}
    by[LINEAR_AROUND] = _means(around)
    by[LINEAR_MEASURED] = {cell: linear_rate(runs, cell, single_per_s=single[cell]) for cell in measured}
    return Judged(measured, by)


def _means(found: Sequence[tuple[Cell, float]]) -> dict[Cell, float]:
    rates: dict[Cell, list[float]] = {}
    for cell, rate in found:
        rates.setdefault(cell, []).append(rate)
    return {cell: float(np.mean(own)) for cell, own in rates.items()}


def error_rows(found: Judged) -> list[list[str]]:
    """Errors of the cells that nothing was fitted on, by network, and of jobs near the knee."""
    rows = []
    tests = [cell for cell in found.measured if not is_for_fit(cell)]
    parts = {
        **{network: [cell for cell in tests if cell.network == network] for network in NETWORKS},
        "both": tests,
        "both, other rates": [cell for cell in tests if cell.mbit != 100.0],
        "both, more workers": [cell for cell in tests if cell.workers > 2],
        "both, two servers": [cell for cell in tests if cell.servers == 2],
    }
    for by, predicted in found.by.items():
        for part, cells in parts.items():
            if by == LINEAR_MEASURED:
                cells = [cell for cell in cells if cell.workers > 1]
            if cells:
                wrong = errors((predicted[cell], found.measured[cell]) for cell in cells)
                figures = (float(np.mean(wrong)), float(np.median(wrong)), float(np.max(wrong)))
                rows.append([by, part, str(len(cells)), *(f"{figure:.1f}" for figure in figures)])
    return rows


def _series(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells that differ in their workers only, the fewest first."""
    groups: dict[Cell, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(replace(cell, workers=1), []).append(cell)
    return [sorted(group, key=lambda cell: cell.workers) for group in groups.values() if len(group) > 2]


def knee(cells: Sequence[Cell], rates: Rates) -> int:
    """The most workers of a series of which the last one still brings half of what the first one does."""
    first = rates[cells[0]]
    for before, cell in zip(cells, cells[1:], strict=False):
        if rates[cell] - rates[before] < _KNEE * first:
            return before.workers
    return cells[-1].workers


def knee_series(found: Judged) -> list[list[Cell]]:
    """The series of which at least one cell is no cell for the fit."""
    return [group for group in _series(list(found.measured)) if not all(map(is_for_fit, group))]


def knee_rows(found: Judged) -> list[list[str]]:
    series = knee_series(found)
    measured = [knee(group, found.measured) for group in series]
    inner = [number for number, group in enumerate(series) if measured[number] < group[-1].workers]
    rows = []
    for by, predicted in found.by.items():
        off = np.array([knee(group, predicted) - was for group, was in zip(series, measured, strict=True)])
        rows.append(
            [by, str(len(series)), f"{np.mean(off == 0):.0%}", f"{np.mean(abs(off) <= 1):.0%}", str(len(inner)),
             *(f"{np.mean(abs(off[inner]) <= most):.0%}" if inner else "–" for most in (0, 1))]
        )  # fmt: skip
    return rows


@dataclass(frozen=True)
class Budget:
    """So many machines for workers and servers of one network over links of one rate."""

    network: str
    mbit: float
    machines: int
    options: tuple[Cell, ...]

    def best(self, rates: Rates) -> Cell:
        """The option with the most samples a second."""
        return max(self.options, key=lambda cell: rates[cell])


def budgets(found: Judged) -> list[Budget]:
    """All budgets that leave a choice among measured cells."""
    made = []
    for network, mbit, machines in product(NETWORKS, RATES, BUDGETS):
        options = tuple(
            cell
            for cell in found.measured
            if (cell.network, cell.mbit, cell.share, cell.every) == (network, mbit, 0.2, 1)
            and cell.workers + cell.servers <= machines
        )
        if options:
            made.append(Budget(network, mbit, machines, options))
    return made


def budget_rows(found: Judged) -> list[list[str]]:
    """Workers and servers chosen for the most samples a second under a budget of machines."""
    rows, asked = [], budgets(found)
    for by, predicted in found.by.items() if asked else ():
        values = [1 - found.measured[one.best(predicted)] / found.measured[one.best(found.measured)] for one in asked]
        good = np.mean(np.array(values) <= REGRET)
        rows.append([by, str(len(values)), f"{good:.0%}", f"{100 * np.mean(values):.1f}", f"{100 * max(values):.1f}"])
    return rows


def luck(runs: Runs, constants: Constants) -> tuple[float, float, float]:
    """How far jobs of one setting are from each other, of two and more workers, by the moments at which they begin.

    Returns:
        The mean deviation of replays of a job from their mean, and of its measured rates where it was measured again,
        in per cent; the part of the jobs that lie within the range of their own replays.
    """
    deviations, inside = [], []
    measured: dict[Cell, list[float]] = {}
    for cell, run in measured_cells(runs):
        if cell.workers > 1:
            rates = np.array(predicted_rates(runs, cell, run, constants, Batches.AROUND))
            measured.setdefault(cell, []).append(run["samples_per_s"])
            deviations.append(100 * np.mean(abs(rates / rates.mean() - 1)))
            inside.append(rates.min() <= run["samples_per_s"] <= rates.max())
    again = [100 * np.mean(abs(np.array(own) / np.mean(own) - 1)) for own in measured.values() if len(own) > 1]
    return float(np.mean(deviations)), float(np.mean(again)) if again else float("nan"), float(np.mean(inside))


def tables(runs: Runs, constants: Constants, found: Judged, commands: Sequence[str]) -> list[dict[str, Any]]:
    """The tables of the page."""
    cells = len(found.measured)
    fitted = sum(map(is_for_fit, found.measured))
    replayed, again, inside = luck(runs, constants)
    host = runs.get("host", {}).get("model name", "an AMD EPYC")
    lines = (
        f"{cells} jobs on two virtual cores of {host}: 1 to 4 equal workers, each with 0.1 or 0.2 of one core and a "
        "link of 50, 100 or 200 Mbit/s, that commit every 1 or 4 batches to 1 or 2 servers and wait for nobody. "
        "Networks: a CNN on digits (0.84 MB of parameters) and a transformer on letters (0.99 MB). A job that was "
        "measured again counts with the mean of both. Measured apart: a batch of one worker at each share without "
        "servers; batches of the same workers before and after each job, without servers; what each link carries. "
        f"Fitted on {fitted} jobs (100 Mbit/s, 1 and 2 workers), the same for both networks: "
        f"{1e3 * constants.commit_cpu_s:.1f} ms of CPU time for a commit and pull, a batch {constants.slow_down:.1%} "
        f"slower for each further worker than one worker's alone, "
        f"{constants.add_bytes_per_s / 1e9:.1f} GB/s added by a server. A replay lasts as long "
        "as the job, its workers begin at random moments of a batch, and the mean of 8 counts; of replays and jobs the "
        "last three quarters of the commits count. Equal workers keep much of how they began for as long as these jobs "
        "last, so a job is a draw: replays of one job are "
        f"{replayed:.1f}% from their own mean on average{_again(again)}, and {inside:.0%} of the jobs lie within the "
        "range of their 8 replays (of draws of the same kind 78% would). The closed form is the mean over all ways to "
        "begin. Baselines: workers times the rate of one, at most what the servers' links carry; the rate of one from "
        "a batch and its link, or as it was measured in that very setting. A batch that begins after its worker stood "
        "still is shorter by a period of the quota less the quota, since the kernel gives an idle process the quota of "
        "a period whole: nothing is fitted. All jobs had been seen when this was found; a fitted part of every batch "
        "stood in its place, and put samples of policies that exchange seldom up to 8 % off. Not measured: workers "
        "that train on while they exchange (real ones here stand still), and control groups of version 2, whose CPU "
        "controller this kind of machine does not offer."
    )
    return [
        _table(
            "Samples a second", lines, commands, ["by", "jobs", "number", "mean %", "median %", "worst %"],
            error_rows(found),
        ),
        _table(
            "Saturation knee",
            "The most workers of which the last one still brings half of what the first one does, in series of 1 to 4 "
            "workers. Inner: the measured knee lies below 4.",
            [], ["by", "series", "equal", "within 1", "inner", "inner equal", "inner within 1"], knee_rows(found),
        ),
        _table(
            "Workers and servers under a budget",
            "2 to 6 machines for workers (0.2 of a core, a commit every batch) and servers, each network and rate: the "
            f"choice is good where it loses at most {REGRET:.0%} of the samples a second of the best measured one.",
            [], ["by", "budgets", "good", "mean regret %", "worst regret %"], budget_rows(found),
        ),
    ]  # fmt: skip


def _again(deviation: float) -> str:
    return "" if np.isnan(deviation) else f", the two runs of one setting {deviation:.1f}% from theirs"


def _table(title: str, note: str, commands: Sequence[str], columns: list[str], rows: list[list[str]]) -> dict[str, Any]:
    return {"title": title, "note": note, "commands": list(commands), "columns": columns, "rows": rows}
