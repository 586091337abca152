"""What predicts the asked runs of a split: cdmpp, no model at all, a random forest, and Extra-P."""

from __future__ import annotations

import json
import os
import subprocess
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import RandomForestRegressor

from benchmarks.expressions.split import Split
from cdmpp.expression import FitSettings, RunPrediction, RunTable, fit_runs

Floats = npt.NDArray[np.float64]
SETTINGS = FitSettings(seed=0, budget_s=5.0)
"""A quarter of the usual time for the search, the same for all tables."""
EXTRAP = "EXTRAP_PYTHON"
_TREES = 200


@dataclass(frozen=True)
class Outcome:
    """How one method did on a split."""

    errors: Floats
    """In per cent, shape ``(asked,)``."""
    cpu_s: float = 0.0
    reach: Floats | None = None
    """How far each asked run is from the predicted time, as a part of the way to the bound of the 80 % interval."""
    text: str = ""

    @property
    def mean(self) -> float:
        return float(np.mean(self.errors))

    @property
    def covered(self) -> float:
        """Part of the asked runs inside of the 80 % interval; NaN where there is none."""
        return float("nan") if self.reach is None else float((self.reach <= 1).mean())


def by_cdmpp(split: Split, settings: FitSettings = SETTINGS) -> Outcome:
    """Fit an expression and predict."""
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = RunTable.of(
            {**split.part(split.known), "time_s": split.times_s[split.known]}, "time_s", split.factors, split.groups
        )
        fitted = fit_runs(table, settings)
    found = fitted.predict({name: values.tolist() for name, values in split.part(split.asked).items()})
    measured = split.times_s[split.asked]
    cpu_s = time.process_time() - begun
    return Outcome(split.errors(found.times_s), cpu_s, reach_of(found, measured), fitted.expression.text())


def reach_of(predicted: RunPrediction, measured_s: Floats) -> Floats:
    """Return how far measured times are from predicted ones, as parts of the way to the bound of the interval."""
    way = np.log(measured_s / predicted.times_s)
    return np.abs(way) / np.log(
        np.where(way > 0, predicted.high_s / predicted.times_s, predicted.times_s / predicted.low_s)
    )


def by_nothing(split: Split, alike: Sequence[str], largest: str) -> Outcome:
    """Repeat the mean time of the known runs that are alike and largest; of fewer equal columns where none is."""
    known, asked = (split.part(rows, [*alike, largest]) for rows in (split.known, split.asked))
    times_s, found = split.times_s[split.known], []
    for place in range(int(split.asked.sum())):
        rows = np.ones(len(times_s), dtype=bool)
        for name in alike:
            narrowed = rows & (known[name] == asked[name][place])
            rows = narrowed if narrowed.any() else rows
        rows &= known[largest] == known[largest][rows].max()
        found.append(times_s[rows].mean())
    return Outcome(split.errors(np.array(found)))


def by_forest(split: Split) -> Outcome:
    """Fit a random forest to the logarithms of times; groups are numbered."""
    known, asked = split.matrices
    for name in split.groups:
        codes = np.unique(np.asarray(split.columns[name]), return_inverse=True)[1]
        known, asked = (
            np.column_stack([one, codes[rows]]) for one, rows in ((known, split.known), (asked, split.asked))
        )
    begun = time.process_time()
    forest = RandomForestRegressor(_TREES, random_state=0).fit(known, np.log(split.times_s[split.known]))
    return Outcome(split.errors(np.exp(forest.predict(asked))), time.process_time() - begun)


def by_extrap(splits: Sequence[Split], factors: Sequence[str] | None = None) -> list[Outcome] | None:
    """Model each split with Extra-P; None where there is none."""
    python = os.environ.get(EXTRAP)
    if not python:
        return None
    asked = []
    for split in splits:
        own = Split(split.name, tuple(factors or split.factors), split.columns, split.times_s, split.known, split.asked)
        known, points = own.matrices
        asked.append(
            {"known": known.tolist(), "known_s": split.times_s[split.known].tolist(), "asked": points.tolist()}
        )
    script = Path(__file__).with_name("extrap_process.py")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [python, str(script)], input=json.dumps(asked), capture_output=True, text=True, env=environment
    )
    if ran.returncode:
        raise RuntimeError(f"Extra-P failed: {ran.stderr[-500:]}")
    return [
        Outcome(split.errors(np.array(one["times_s"])), one["cpu_s"], text=one["text"])
        for split, one in zip(splits, json.loads(ran.stdout), strict=True)
    ]
