"""How long a fit of 200 runs and six factors takes, beside Extra-P."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.expressions.methods import Outcome, by_cdmpp, by_extrap
from benchmarks.expressions.rows import COMMANDS, NAMES
from benchmarks.expressions.split import Split
from benchmarks.run import machine
from cdmpp.expression import FitSettings

ROWS, ASKED = 200, 50
FACTORS = ("gpus", "nodes", "batch", "layers", "hidden", "chunks")
LEAST = "cdmpp, known terms without a search"
_PROCESSES, _FITS = 3, 5
"""Processes of Extra-P and of the shortest fit of cdmpp, and fits in each."""
_VALUES = {"gpus": (4, 8, 16, 32), "nodes": (1, 2, 4), "batch": (32, 64, 128, 256), "layers": (4, 8, 16),
           "hidden": (256, 512, 1024), "chunks": (1, 2, 4)}  # fmt: skip


def split() -> Split:
    """Runs of a law of six factors with 3 % of noise; others of the same law are asked for."""
    rng = np.random.default_rng(0)
    columns = {name: rng.choice(np.array(values, dtype=float), ROWS + ASKED) for name, values in _VALUES.items()}
    work = columns["batch"] * columns["layers"] * columns["hidden"] ** 2 / columns["gpus"]
    exchanged = columns["layers"] * columns["hidden"] ** 2 * (1 - 1 / columns["nodes"])
    launched = columns["layers"] * columns["chunks"]
    times_s = 2e-3 + 1e-10 * work + 2e-8 * exchanged + 1e-4 * launched
    times_s *= np.exp(rng.normal(0, 0.03, ROWS + ASKED))
    asked = np.arange(ROWS + ASKED) >= ROWS
    return Split("speed", FACTORS, columns, times_s, ~asked, asked)


def tables(data: Path) -> list[dict[str, Any]]:
    """Fit with each; nothing of ``data`` is read."""
    own = split()
    extrap = [found for _ in range(_PROCESSES) if (found := by_extrap([own] * _FITS))]
    found: dict[str, Sequence[Sequence[Outcome]]] = {
        "extrap": extrap, "cdmpp": [[by_cdmpp(own, FitSettings(seed=0))]],
        "cdmpp, a quarter of the search": [[by_cdmpp(own)]], LEAST: [_in_a_process() for _ in range(_PROCESSES)],
    }  # fmt: skip
    rows = []
    for name, processes in found.items():
        first, later = _first_and_later(processes)
        error = f"{processes[0][0].mean:.1f}" if processes else ""
        rows.append([NAMES.get(name, name), first if processes else "not run", later, error])
    least = found[LEAST][0][0]
    note = (
        f"{ROWS} runs, {len(FACTORS)} factors, {ASKED} others of the same law held out; CPU seconds of one fit on "
        f"{machine()}, without imports: of the first fit of a process (the middle of {_PROCESSES} processes), and of "
        "later ones. "
    )
    if extrap:
        peer = extrap[0][0]
        ratios = [mine / other for mine, other in zip(_seconds(found[LEAST]), _seconds(extrap), strict=True)]
        note += (
            f"Extra-P is {peer.mean:.0f} % off here, so the comparison at equal accuracy is with the shortest fit of "
            "cdmpp: all known terms at once, without a search, with two resamples in place of 40. It is off by "
            f"{least.mean:.1f} %; its first fit takes {ratios[0]:.2f} times the time of Extra-P's, later ones "
            f"{ratios[1]:.2f} times."
        )
    return [{"title": "Time of a fit", "note": note, "commands": COMMANDS, "rows": rows,
             "columns": ["fitted by", "CPU s, first", "later", "error on held-out runs, mean %"]}]  # fmt: skip


def _shortest() -> list[Outcome]:
    return [by_cdmpp(split(), FitSettings(seed=0, budget_s=0.1, resamples=2)) for _ in range(_FITS)]


def _in_a_process() -> list[Outcome]:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_shortest).result()


def _seconds(processes: Sequence[Sequence[Outcome]]) -> tuple[float, float]:
    """CPU seconds of the first fit of a process, and of later ones: NaN where there are none."""
    first = [one[0].cpu_s for one in processes]
    later = [fit.cpu_s for one in processes for fit in one[1:]]
    return float(np.median(first)), float(np.median(later)) if later else float("nan")


def _first_and_later(processes: Sequence[Sequence[Outcome]]) -> tuple[str, str]:
    if not processes:
        return "", ""
    first, later = _seconds(processes)
    return f"{first:.2f}", "" if np.isnan(later) else f"{later:.2f}"
