"""Predicted and measured jobs of equal workers: errors, saturation knees, and what is chosen under a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from benchmarks.synchrony.cells import NETWORKS, RATES, Cell, is_for_fit
from benchmarks.synchrony.predict_runs import (
    APART,
    TOGETHER,
    Constants,
    Runs,
    errors,
    linear_rate,
    loop_rate,
    measured_cells,
    predicted_rate,
)

Rates = Mapping[Cell, float]
"""Samples a second of each cell."""
OURS, OURS_GIVEN, LOOP = "replay", "replay with the batches of that job", "closed form of provisioning"
LINEAR, LINEAR_MEASURED = "linear, capped", "linear from a measured worker, capped"
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
    cells = measured_cells(runs)
    measured = {cell: float(run["samples_per_s"]) for cell, run in cells}
    single = {cell: measured[replace(cell, workers=1)] for cell in measured}
    starts = best_starts(runs, constants)
    ours, given = dict[Cell, float](), dict[Cell, float]()
    for cell, run in cells:
        for rates, batch_s in ((ours, None), (given, float(np.mean(run["batch_s"])))):
            rates[cell] = predicted_rate(runs, cell, constants, run["seconds_s"], starts, batch_s)
    loop = {cell: loop_rate(runs, cell, constants) for cell in measured}
    linear = {cell: linear_rate(runs, cell) for cell in measured}
    linear_measured = {cell: linear_rate(runs, cell, single[cell]) for cell in measured}
    by = {OURS: ours, OURS_GIVEN: given, LOOP: loop, LINEAR: linear, LINEAR_MEASURED: linear_measured}
    return Judged(measured, by)


def best_starts(runs: Runs, constants: Constants) -> str:
    """How the workers of a replay begin: what is nearer to the jobs that constants are fitted on."""
    cells = [(cell, run) for cell, run in measured_cells(runs) if is_for_fit(cell)]

    def error(starts: str) -> float:
        pairs = (
            (predicted_rate(runs, cell, constants, run["seconds_s"], starts, float(np.mean(run["batch_s"]))),
             run["samples_per_s"])
            for cell, run in cells
        )  # fmt: skip
        return float(np.mean(errors(pairs)))

    return min((TOGETHER, APART), key=error)


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


def knee_rows(found: Judged) -> list[list[str]]:
    series = [group for group in _series(list(found.measured)) if not all(map(is_for_fit, group))]
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


def budget_rows(found: Judged) -> list[list[str]]:
    """Workers and servers chosen for the most samples a second under a budget of machines."""
    regrets: dict[str, list[float]] = {by: [] for by in found.by}
    for network, mbit, machines in product(NETWORKS, RATES, BUDGETS):
        options = [
            cell
            for cell in found.measured
            if (cell.network, cell.mbit, cell.share, cell.every) == (network, mbit, 0.2, 1)
            and cell.workers + cell.servers <= machines
        ]
        if not options:
            continue
        best = max(found.measured[cell] for cell in options)
        for by, predicted in found.by.items():
            chosen = max(options, key=lambda cell: predicted[cell])
            regrets[by].append(1 - found.measured[chosen] / best)
    rows = []
    for by, values in regrets.items():
        if values:
            good = np.mean(np.array(values) <= REGRET)
            rows.append(
                [by, str(len(values)), f"{good:.0%}", f"{100 * np.mean(values):.1f}", f"{100 * max(values):.1f}"]
            )
    return rows


def tables(runs: Runs, constants: Constants, commands: Sequence[str]) -> list[dict[str, Any]]:
    """The tables of the page."""
    found = judged(runs, constants)
    cells = len(found.measured)
    fitted = sum(map(is_for_fit, found.measured))
    lines = (
        f"{cells} jobs on two virtual cores of an AMD EPYC: 1 to 4 equal workers, each with 0.1 "
        "or 0.2 of one core and a link of 50, 100 or 200 Mbit/s, "
        "that commit every 1 or 4 batches to 1 or 2 servers and wait for nobody. Networks: a CNN on digits (0.84 MB "
        "of parameters) and a transformer on letters (0.99 MB). Measured apart: a batch of one worker at each share "
        f"without servers, and what each link carries. Fitted on {fitted} jobs (100 Mbit/s, 1 and 2 workers), the same "
        f"for both networks: {1e3 * constants.commit_cpu_s:.1f} ms of CPU time for a commit and pull, a batch "
        f"{constants.slow_down:.1%} slower for each further worker on the core, {constants.add_bytes_per_s / 1e9:.1f} "
        f"GB/s added by a server; workers that begin {best_starts(runs, constants)} (together or apart: a "
        "choice that was added after all jobs had been seen). Replays last as long as the jobs; "
        "of both the last three quarters of the commits count. The speed of the cores drifts: a batch of one worker "
        "took up to a third more or less from job to job. So the replay is shown with a batch measured apart, and with "
        "the mean batch of the job itself. Some pairs of workers stayed in step for the whole job and pushed at the "
        "same time, others came apart; no replay here tells which. Baselines: workers times the rate of one, at most "
        "what the servers' links carry; the rate of one from its batch measured apart and its link, or as it was "
        "measured in that very setting."
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


def _table(title: str, note: str, commands: Sequence[str], columns: list[str], rows: list[list[str]]) -> dict[str, Any]:
    return {"title": title, "note": note, "commands": list(commands), "columns": columns, "rows": rows}
