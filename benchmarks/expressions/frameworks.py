"""Training steps of the same networks in PyTorch and in JAX, measured here by ``examples/time_runs.py``."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.expressions.methods import by_cdmpp, by_extrap, by_forest, by_nothing
from benchmarks.expressions.rows import NAMES, coverage
from benchmarks.expressions.split import Split

RUNS = Path(__file__).parents[2] / "docs" / "measured" / "runs" / "frameworks.csv"
REPEATS = RUNS.with_name("framework-repeats.csv")
_MEASURED = ("torch", "jax")
FACTORS = ("processes", "layers", "hidden", "local_batch", "chunks")
LARGEST_KNOWN = {"local_batch": 128.0, "hidden": 256.0}
COMMANDS = [
    *(
        f"python examples/time_runs.py {name} frameworks.csv --seconds {time}"
        for name, time in (("torch", 200), ("jax", 230))
    ),
    "EXTRAP_PYTHON=PYTHON python -m benchmarks.expressions frameworks --data FOLDER --publish",
]


def splits() -> list[Split]:
    """For each framework: small batches to large ones, narrow layers to wide ones, one process to two."""
    with RUNS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = []
    for framework in ("torch", "jax"):
        own = [row for row in rows if row["framework"] == framework]
        columns = {name: np.array([float(row[name]) for row in own]) for name in FACTORS}
        times_s = np.array([float(row["step_s"]) for row in own])
        for name, largest in LARGEST_KNOWN.items():
            known = columns[name] <= largest
            what = f"{framework}, {name} to {largest:g}: above"
            found.append(Split(what, FACTORS, columns, times_s, known, ~known))
    return found


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge the measured runs; nothing of ``data`` is read."""
    own = splits()
    extrap = by_extrap(own)
    rows = []
    for place, split in enumerate(own):
        largest = next(name for name in LARGEST_KNOWN if f", {name} " in split.name)
        plain = by_nothing(split, [name for name in FACTORS if name != largest], largest)
        ours, alone = by_cdmpp(split), split.part(split.asked)["processes"] == 1
        rows.append([
            split.name, str(int(split.known.sum())), str(int(split.asked.sum())), f"{plain.mean:.1f}",
            "not run" if extrap is None else f"{extrap[place].mean:.1f}", f"{by_forest(split).mean:.1f}",
            f"{ours.mean:.1f}", *(f"{ours.errors[alone == is_one].mean():.1f}" for is_one in (True, False)),
            *coverage([ours]),
        ])  # fmt: skip
    note = (
        "Steps of dense networks on two virtual cores of an Intel Xeon, one thread a process; 1 and 2 processes, "
        "2 to 8 layers of 128 to 512 features, 32 to 512 samples a process, 1 to 4 chunks. Nothing else ran. "
        "No model: the most alike run of the largest value seen. Errors are means in per cent. Each configuration was "
        "measured once; how far repeats are apart is in the next table. Only two widths are fitted where 512 is asked "
        "for: they do not tell a constant, a linear and a quadratic part apart. "
        f"{_growth(own[1])}"
    )
    return [_repeats(), {
        "title": "Real runs of two frameworks", "note": note, "commands": COMMANDS, "rows": rows,
        "columns": ["framework and split", "fitted", "asked", "no model", NAMES["extrap"], NAMES["forest"],
                    NAMES["cdmpp"], "on one process", "on two", "in the 80 % interval", "width for 80 %"],
    }][::-1]  # fmt: skip


def _growth(split: Split) -> str:
    """What two widths leave open on the third, for one process of a framework."""
    keys = zip(*(split.columns[name] for name in FACTORS), strict=True)
    times = dict(zip(keys, split.times_s, strict=True))
    rows = []
    for (processes, layers, hidden, batch, chunks), first in times.items():
        second, third = (times.get((processes, layers, wide, batch, chunks)) for wide in (256.0, 512.0))
        if processes == 1 and hidden == 128 and second and third:
            grown = second / first
            powers = {0: (1, 1, 1), 1: (1, 2, 4), 2: (1, 4, 16)}
            open_ = []
            for one, other in ((0, 1), (1, 2), (0, 2)):
                parts = np.linalg.solve(np.array([powers[one][:2], powers[other][:2]]).T, [1.0, grown])
                if parts.min() >= 0:
                    open_.append(float(parts @ [powers[one][2], powers[other][2]]) / grown)
            if open_:
                rows.append((min(open_), third / second, max(open_)))
    low, measured, high = np.median(rows, axis=0)
    return (
        f"In the middle of {len(rows)} configurations of PyTorch on one process, sums that fit both widths grow "
        f"{low:.2f} to {high:.2f} times from 256 to 512, and the measured times {measured:.2f} times."
    )


def _repeats() -> dict[str, Any]:
    """How far two measurements of the same configuration are apart: no model of the columns can be nearer to both."""
    with REPEATS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    times = dict[tuple[str, ...], list[float]]()
    for row in rows:
        times.setdefault(tuple(row[name] for name in ("framework", *FACTORS)), []).append(float(row["step_s"]))
    shown = []
    for framework, processes in dict.fromkeys(key[:2] for key in times):
        kind = (framework, processes)
        pairs = np.array([found[:2] for key, found in times.items() if key[:2] == kind and len(found) > 1])
        apart = 100 * np.abs(pairs[:, 0] / pairs[:, 1] - 1)
        middle = 100 * np.abs(pairs / np.sqrt(pairs.prod(axis=1, keepdims=True)) - 1)
        shown.append([
            framework, processes, str(len(pairs)), f"{apart.mean():.1f}", f"{np.median(apart):.1f}",
            f"{np.quantile(apart, 0.9):.1f}", f"{middle.mean():.1f}",
        ])  # fmt: skip
    note = (
        "The same configurations measured twice, minutes apart, on two virtual cores of an AMD EPYC; nothing else ran. "
        "The last column is the error of the best constant for each configuration, their geometric mean: a floor for "
        "any model of these columns. Where two measurements are 13 % apart, not even the other measurement predicts "
        "one of them to 8 %."
    )
    return {
        "title": "Repeats of real runs", "note": note, "rows": shown,
        "commands": [
            *(f"python examples/time_runs.py {name} framework-repeats.csv --seconds 70  # twice" for name in _MEASURED),
            *COMMANDS[-1:],
        ],
        "columns": ["framework", "processes", "configurations", "apart, mean %", "median %", "90 % within",
                    "best constant, mean %"],
    }  # fmt: skip
