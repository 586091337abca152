"""Training steps of the same networks in PyTorch and in JAX, measured here by ``examples/time_runs.py``."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.expressions.methods import by_cdmpp, by_extrap, by_forest, by_nothing
from benchmarks.expressions.rows import NAMES
from benchmarks.expressions.split import Split

RUNS = Path(__file__).parents[2] / "docs" / "measured" / "runs" / "frameworks.csv"
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
        ours = by_cdmpp(split)
        rows.append([
            split.name, str(int(split.known.sum())), str(int(split.asked.sum())), f"{plain.mean:.1f}",
            "not run" if extrap is None else f"{extrap[place].mean:.1f}", f"{by_forest(split).mean:.1f}",
            f"{ours.mean:.1f}", f"{100 * ours.covered:.0f} %",
        ])  # fmt: skip
    note = (
        "Steps of dense networks on two virtual cores of an Intel Xeon, one thread a process; 1 and 2 processes, "
        "2 to 8 layers of 128 to 512 features, 32 to 512 samples a process, 1 to 4 chunks. Nothing else ran. "
        "No model: the most alike run of the largest value seen. Errors are means in per cent."
    )
    return [{
        "title": "Real runs of two frameworks", "note": note, "commands": COMMANDS, "rows": rows,
        "columns": ["framework and split", "fitted", "asked", "no model", NAMES["extrap"], NAMES["forest"],
                    NAMES["cdmpp"], "in the 80 % interval"],
    }]  # fmt: skip
