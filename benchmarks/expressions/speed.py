"""How long a fit of 200 runs and six factors takes, beside Extra-P."""

from __future__ import annotations

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
LEAST = "cdmpp, hardly any search"
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
    """Fit once with each; nothing of ``data`` is read."""
    own = split()
    extrap = by_extrap([own])
    found: dict[str, Outcome | None] = {
        "extrap": extrap[0] if extrap else None, "cdmpp": by_cdmpp(own, FitSettings(seed=0)),
        "cdmpp, a quarter of the search": by_cdmpp(own),
        LEAST: by_cdmpp(own, FitSettings(seed=0, budget_s=0.01, resamples=2)),
    }  # fmt: skip
    rows = [
        [
            NAMES.get(name, name),
            "not run" if one is None else f"{one.cpu_s:.1f}",
            "" if one is None else f"{one.mean:.1f}",
        ]
        for name, one in found.items()
    ]
    least = found[LEAST]
    assert least is not None
    note = (
        f"{ROWS} runs, {len(FACTORS)} factors, {ASKED} others of the same law held out; CPU seconds of one fit, in one "
        f"process each, on {machine()}. "
    )
    if extrap:
        ratio = least.cpu_s / extrap[0].cpu_s
        note += (
            f"Extra-P is {extrap[0].mean:.0f} % off here, so the comparison at equal accuracy is with the shortest fit "
            f"of cdmpp, with hardly any search and two resamples in place of 40: it is off by {least.mean:.1f} % and "
            f"takes {ratio:.1f} times as long as Extra-P."
        )
    return [{"title": "Time of a fit", "note": note, "commands": COMMANDS,
             "columns": ["fitted by", "CPU s", "error on held-out runs, mean %"], "rows": rows}]  # fmt: skip
